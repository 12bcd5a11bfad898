"""agentlightning finds a turn by its spans: a chat span inside the assistant's executor span."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from agent_framework import observability
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.worker.rollouts.fakes import CREATE, calls, converse, says, serving
from worker.rollouts.conversation import ASSISTANT_AGENT, USER_AGENT
from worker.rollouts.endpoints import chat_model


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(observability.OBSERVABILITY_SETTINGS, "enable_instrumentation", True)
    yield exporter
    provider.shutdown()


def executor_of(span: ReadableSpan, by_id: dict[int, ReadableSpan]) -> object:
    """The id of the nearest executor above a span."""
    while span.parent is not None and span.parent.span_id in by_id:
        span = by_id[span.parent.span_id]
        if "executor.id" in (span.attributes or {}):
            return (span.attributes or {})["executor.id"]
    return None


def test_each_model_call_lies_in_the_executor_of_its_side(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", "k")
    with (
        serving(calls("create_task", json.dumps(CREATE)), says("Done.")) as policy,
        serving(says("Create it."), says("###STOP###")) as simulator,
    ):
        assistant, user = (
            chat_model(model="m", base_url=server.url, api_key_env="TEST_KEY", temperature=0)
            for server in (policy, simulator)
        )
        document = converse(assistant, user)
    assert document.reward == 1
    finished = spans.get_finished_spans()
    by_id = {span.context.span_id: span for span in finished}
    chats = [span for span in finished if span.name.startswith("chat")]
    assert sorted(str(executor_of(span, by_id)) for span in chats) == [
        ASSISTANT_AGENT,
        ASSISTANT_AGENT,
        USER_AGENT,
        USER_AGENT,
    ]
