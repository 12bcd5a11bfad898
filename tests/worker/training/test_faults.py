"""Claims about faults of an endpoint, from real HTTP to what the trainer and a person get.

The server is a fake that injects them (``tests/worker/rollouts/fakes.py``).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import AttemptedRollout, EnqueueRolloutRequest, ProxyLLM
from agentlightning.types import RolloutConfig as StoredConfig

from app.contract import Outcome, RunConfig
from tests.worker.rollouts.fakes import (
    CREATE,
    Answer,
    FakeServer,
    calls,
    cuts,
    fails,
    hangs,
    raw,
    says,
    serving,
)
from tests.worker.training.test_agent import RecordingReporter
from worker.agent import RolloutNotJudged, Tau2Agent
from worker.cpu.tiny import build_tokenizer
from worker.retries import LONGEST_WAIT_SECONDS
from worker.rollouts.endpoints import retry_after_seconds


def solves(handler: Any, request: dict[str, Any]) -> None:
    """An assistant that does the task."""
    done = request["messages"][-1]["role"] == "tool"
    answer = says("Done.") if done else calls("create_task", json.dumps(CREATE))
    answer(handler, request)


def asks(handler: Any, request: dict[str, Any]) -> None:
    """A user that ends the conversation once it hears that the task is done."""
    done = "Done." in json.dumps(request["messages"][-1])
    says("###STOP###" if done else "Create it.")(handler, request)


FAULTS = {
    "429": (fails(429, "slow down", retry_after="0.01"), "slow down"),
    "500": (fails(500, "broken", retry_after="0.01"), "broken"),
    "cut": (cuts, "onnection"),
    "truncated": (raw(b'{"id": "c", "choices": ['), "JSON"),
    "wrong schema": (raw(b'{"hello": "world"}'), "assistant"),
    "hang": (hangs, "not done after"),
}


@pytest.fixture(autouse=True)
def a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "key-that-must-not-be-seen")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(["Create a task."]).save_pretrained(folder)
    return str(folder)


class Training:
    """An agent between two fake servers, and a store that tries again as agentlightning's does."""

    def __init__(
        self, policy: str, assistant: FakeServer, simulator: FakeServer, **rollout: Any
    ) -> None:
        self.reporter = RecordingReporter()
        self.assistant = assistant
        self.max_attempts = rollout.setdefault("max_attempts", 3)
        config = {
            "rollout": {"timeout_seconds": 30, **rollout},
            "training": {"max_prompt_tokens": 100_000},
            "user_simulator": {
                "kind": "openai",
                "model": "u",
                "base_url": simulator.url,
                "api_key_env": "TEST_KEY",
            },
        }
        self.agent = Tau2Agent(
            RunConfig.model_validate(config),
            run_id="run_1",
            attempt=1,
            reporter=self.reporter,  # type: ignore[arg-type]
            tokenizer_path=policy,
            api_key="unused",
        )
        self.agent._sleep = self.reporter.sleep
        self.errors: list[str] = []
        self.rewards: list[float | None] = []

    async def run(self) -> None:
        """Tries until the store has nothing more; keeps what each try gave the trainer."""
        try:
            await self._all_tries()
        finally:
            await self.agent._endpoint().close()

    async def _all_tries(self) -> None:
        store = InMemoryLightningStore()
        conditions = ["failed", "timeout", "unresponsive"]
        asked = EnqueueRolloutRequest(
            input={"id": "create_task_1"},
            mode="train",
            config=StoredConfig(max_attempts=self.max_attempts, retry_condition=conditions),
            metadata={"step": 1, "seed": 5},
        )
        await store.enqueue_many_rollouts([asked])
        while (tried := await store.dequeue_rollout()) is not None:
            reward = await self._try(tried)
            self.rewards.append(reward)
            await store.update_attempt(
                tried.rollout_id,
                tried.attempt.attempt_id,
                status="failed" if reward is None else "succeeded",
            )

    async def _try(self, tried: AttemptedRollout) -> float | None:
        llm = ProxyLLM(endpoint=self.assistant.url, model="policy")
        task = dict(tried.input)
        try:
            return await self.agent.rollout_async(task, {"main_llm": llm}, tried)
        except RolloutNotJudged as error:
            self.errors.append(str(error))
            return None


def against(policy: str, side: str, answers: Sequence[Answer], **rollout: Any) -> Training:
    """A training of one rollout, over, in which one side's server answers as given."""
    assistant = answers if side == "assistant" else [solves]
    simulator = answers if side == "user" else [asks]
    with serving(*assistant) as first, serving(*simulator) as second:
        training = Training(policy, first, second, **rollout)
        asyncio.run(training.run())
    return training


def expected(side: str, fault: str) -> Outcome:
    if fault == "hang":
        return Outcome.TIMEOUT
    return Outcome.INFRASTRUCTURE_ERROR if side == "assistant" else Outcome.USER_ERROR


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("side", ["assistant", "user"])
def test_a_fault_is_tried_again_after_a_wait_and_the_recovery_is_judged(
    side: str, fault: str, policy: str
) -> None:
    answer, words = FAULTS[fault]
    # The simulator's client itself asks three times where that may help.
    asked = 3 if side == "user" and fault in ("429", "500", "cut") else 1
    healthy = solves if side == "assistant" else asks
    seconds = 1.5 if fault == "hang" else 30
    training = against(policy, side, [*[answer] * asked, healthy], timeout_seconds=seconds)
    assert training.rewards == [None, 1.0]
    ((kind, event),) = training.reporter.events
    assert (kind, event["outcome"], event["tries"]) == ("rollout_retried", expected(side, fault), 1)
    if fault != "wrong schema":
        assert words in event["cause"]
    assert "key-that-must-not-be-seen" not in event["cause"]
    assert training.reporter.slept == pytest.approx([event["wait_seconds"]], abs=1e-3)
    assert [d.outcome for d in training.reporter.rollouts] == [Outcome.COMPLETED]


@pytest.mark.parametrize("side", ["assistant", "user"])
def test_a_fault_that_stays_is_left_out_and_reported_once_without_a_reward(
    side: str, policy: str
) -> None:
    training = against(policy, side, [fails(429, retry_after="0.01")], max_attempts=3)
    assert training.rewards == [None] * 3
    (document,) = training.reporter.rollouts
    assert (document.outcome, document.reward) == (expected(side, "429"), None)
    assert "429" in (document.cause or "")
    first, second = training.reporter.slept
    assert 1 <= first <= 1.5
    assert 2 <= second <= 3
    assert all(error.startswith(expected(side, "429")) for error in training.errors)


def test_a_simulator_off_its_script_is_tried_again_and_then_left_out(policy: str) -> None:
    training = against(policy, "user", [says("###OUT-OF-SCOPE###")], max_attempts=2)
    assert training.rewards == [None, None]
    (document,) = training.reporter.rollouts
    assert (document.outcome, document.reward) == (Outcome.OUT_OF_SCOPE, None)
    back = against(policy, "user", [says("###OUT-OF-SCOPE###"), asks])
    assert back.rewards == [None, 1.0]
    assert len(back.reporter.slept) == 1


@pytest.mark.parametrize("asked", ["20", "700"])
def test_the_wait_is_what_the_endpoint_asks_for_within_a_bound(asked: str, policy: str) -> None:
    training = against(policy, "assistant", [fails(429, retry_after=asked), solves])
    (waited,) = training.reporter.slept
    assert min(float(asked), LONGEST_WAIT_SECONDS) <= waited <= LONGEST_WAIT_SECONDS


def test_what_the_policy_did_is_judged_at_once_and_never_tried_again(policy: str) -> None:
    training = against(policy, "assistant", [says("")])
    assert training.rewards == [0.0]
    assert (training.reporter.events, training.reporter.slept) == ([], [])


def test_a_wait_ends_with_its_rollout(policy: str) -> None:
    async def cancel() -> None:
        with serving(fails(500)) as assistant, serving(asks) as simulator:
            training = Training(policy, assistant, simulator)
            waiting = asyncio.Event()

            async def sleep(seconds: float) -> None:
                waiting.set()
                await asyncio.sleep(seconds * 1000)

            training.agent._sleep = sleep
            task = asyncio.create_task(training.run())
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())


class _Answered(Exception):
    """An error that keeps the endpoint's answer, as openai's do."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.response = self
        self.headers = headers


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [("7", 7, 7), ("1.5", 1.5, 1.5), (formatdate(time.time() + 3600, usegmt=True), 3000, 3601)],
)
def test_a_retry_after_is_read_as_seconds_and_as_a_date(
    value: str, low: float, high: float
) -> None:
    wrapped = RuntimeError("the framework's own")
    wrapped.__cause__ = _Answered({"retry-after": value})
    found = retry_after_seconds(wrapped)
    assert found is not None
    assert low <= found <= high


@pytest.mark.parametrize(
    "value", ["soon", "-3", "0", "nan", "inf", "Thu, 01 Jan 1970 00:00:00 GMT"]
)
def test_a_retry_after_that_says_nothing_is_none(value: str) -> None:
    assert retry_after_seconds(_Answered({"retry-after": value})) is None
    assert retry_after_seconds(RuntimeError("no answer at all")) is None
