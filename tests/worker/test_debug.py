"""The debug child: one answer a line, nothing else on its output, whatever it is asked."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.contract import Domain, RolloutDoc
from tests.worker.rollouts.fakes import hangs, says, serving
from worker.rollouts.tasks import task_ids

ROOT = Path(__file__).parents[2]
KEY = "key-that-must-not-be-seen"


class Child:
    """``python -m worker.debug`` and its two pipes."""

    def __init__(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "worker.debug"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.ready = self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def send(self, line: bytes) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return self.read()

    def ask(self, **request: Any) -> Any:
        return self.send(json.dumps({"rollout_id": "ro_1", "request": request}).encode())

    def end(self) -> tuple[int, bytes]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        rest = self.process.stdout.read()
        return self.process.wait(30), rest


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    started = Child(TEST_KEY=KEY)
    yield started
    assert started.end() == (0, b"")


def test_it_says_when_it_is_ready(child: Child) -> None:
    assert child.ready == {"ready": True}


def test_an_empty_request_is_the_reference_on_mock(child: Child) -> None:
    answer = child.ask(task_id="create_task_1")
    document = RolloutDoc.model_validate(answer["rollout"])
    assert (document.id, document.mode, document.reward) == ("ro_1", "debug", 1.0)
    assert document.messages


def test_doing_nothing_is_judged(child: Child) -> None:
    answer = child.ask(task_id="create_task_1", assistant={"kind": "do_nothing"})
    assert answer["rollout"]["reward"] == 0.0


def test_airline_is_served_too(child: Child) -> None:
    answer = child.ask(domain="airline", task_id="1")
    assert answer["rollout"]["reward"] == 1.0


def test_an_unknown_task_is_an_error_with_its_path(child: Child) -> None:
    error = child.ask(task_id="nope")["error"]
    assert (error["code"], error["path"]) == ("unknown_task", "task_id")


@pytest.mark.parametrize(
    ("sides", "path"),
    [
        ({"assistant": "openai"}, "assistant.api_key_env"),
        ({"user_simulator": "openai"}, "user_simulator.api_key_env"),
    ],
)
def test_a_missing_key_is_an_error_that_names_it(
    child: Child, sides: dict[str, str], path: str
) -> None:
    request = {
        side: {"kind": kind, "model": "m", "api_key_env": "NO_SUCH_KEY"}
        for side, kind in sides.items()
    }
    error = child.ask(task_id="create_task_1", **request)["error"]
    assert (error["code"], error["path"]) == ("missing_key", path)
    assert "NO_SUCH_KEY" in error["message"]


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b"nonsense", ""),
        (b"[]", ""),
        (b'{"rollout_id": "ro_1", "request": {"task_id": "t", "max_steps": 0}}', "max_steps"),
        (b'{"rollout_id": "ro_1", "request": {"task_id": "t", "typo": 0}}', "typo"),
    ],
)
def test_what_is_no_request_is_an_error_and_the_child_goes_on(
    child: Child, line: bytes, path: str
) -> None:
    error = child.send(line)["error"]
    assert (error["code"], error["path"]) == ("invalid_request", path)
    assert child.ask(task_id="create_task_1")["rollout"]["reward"] == 1.0


def test_a_deadline_is_a_timeout_without_a_reward(child: Child) -> None:
    with serving(hangs) as server:
        model = {"kind": "openai", "model": "m", "base_url": server.url, "api_key_env": "TEST_KEY"}
        answer = child.ask(task_id="create_task_1", assistant=model, deadline_seconds=0.5)
    assert answer["rollout"]["outcome"] == "timeout"
    assert answer["rollout"]["reward"] is None


def test_a_chat_model_may_play_both_sides(child: Child) -> None:
    with serving(says("Create it."), says("I cannot."), says("Bye ###STOP###")) as server:
        model = {"kind": "openai", "model": "m", "base_url": server.url, "api_key_env": "TEST_KEY"}
        answer = child.ask(task_id="create_task_1", assistant=model, user_simulator=model)
    assert answer["rollout"]["outcome"] == "completed"
    assert answer["rollout"]["tokens"]["user_prompt"] == 22
    assert KEY not in json.dumps(answer)


PARENT = """
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-m", "worker.debug"], stdout=subprocess.PIPE, start_new_session=True
)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word of a parent's death")
def test_it_dies_with_its_parent_even_where_its_input_does_not_end() -> None:
    ours, its = os.pipe()[::-1]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdin=its, stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        ended, _, _ = select.select([child], [], [], 20)
        os.close(child)
        assert ended
    finally:
        parent.kill()
        parent.wait()
        for descriptor in (ours, its):
            os.close(descriptor)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("domain", [Domain.AIRLINE, Domain.RETAIL, Domain.TELECOM])
def test_the_reference_earns_everything_on_every_task(domain: Domain) -> None:
    children = [Child(), Child()]

    def rewards(part: int) -> dict[str, float]:
        tasks = task_ids(domain)[part::2]
        asked = {task: children[part].ask(domain=domain, task_id=task) for task in tasks}
        return {task: answer["rollout"]["reward"] for task, answer in asked.items()}

    with ThreadPoolExecutor(2) as pool:
        even, odd = pool.map(rewards, range(2))
    assert {child.end() for child in children} == {(0, b"")}
    assert even | odd == dict.fromkeys(task_ids(domain), 1.0)
    assert len(even | odd) == {"airline": 50, "retail": 114, "telecom": 114}[domain]
