"""Debug rollouts, with a child that a script plays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings

ANSWER = "say(rollout(question))"
HANG = "time.sleep(600)"


@pytest.fixture
def debug(
    settings: Settings, child_script: Callable[[str], list[str]], tmp_path: Path
) -> Iterator[Callable[[str], TestClient]]:
    """A client whose debug child does what the given lines say."""
    clients: list[TestClient] = []

    def start(body: str) -> TestClient:
        changes = {"debug_command": child_script(body)}
        client = TestClient(create_app(settings.model_copy(update=changes)))
        clients.append(client)
        return client.__enter__()

    yield start
    for client in clients:
        client.__exit__(None, None, None)


def post(client: TestClient, **body: Any) -> Any:
    return client.post("/rollouts/debug", json={"task_id": "create_task_1", **body})


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie whose parent has not looked yet is dead.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come true"
        threading.Event().wait(0.01)


def test_a_debug_rollout_is_answered_and_kept(debug: Callable[[str], TestClient]) -> None:
    client = debug(ANSWER)
    answer = post(client)
    rollout = answer.json()
    assert answer.status_code == 200, answer.text
    assert (rollout["mode"], rollout["run_id"], rollout["reward"]) == ("debug", None, 1.0)
    assert rollout["id"].startswith("ro_")
    assert rollout["messages"][0]["content"] == "hi"
    assert rollout["baselines"] == {"do_nothing": None, "reference": None}
    assert client.get(f"/rollouts/{rollout['id']}").json() == rollout


def test_a_warm_child_is_asked_again(debug: Callable[[str], TestClient]) -> None:
    client = debug("say(rollout(question, cause=str(os.getpid())))")
    assert post(client).json()["cause"] == post(client).json()["cause"]


def test_passing_the_deadline_is_a_timeout_and_ends_all_the_child_started(
    debug: Callable[[str], TestClient], tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    client = debug(
        f"""
        other = subprocess.Popen(["sleep", "600"], process_group=0)
        open({str(note)!r}, "w").write(f"{{os.getpid()}} {{other.pid}}")
        {HANG}
        """
    )
    started = time.monotonic()
    answer = post(client, deadline_seconds=0.8)
    assert answer.status_code == 200
    rollout = answer.json()
    assert (rollout["outcome"], rollout["reward"]) == ("timeout", None)
    assert "0.8 s" in rollout["cause"]
    assert time.monotonic() - started < 20
    pids = [int(pid) for pid in note.read_text().split()]
    wait_until(lambda: not any(alive(pid) for pid in pids))
    assert client.get(f"/rollouts/{rollout['id']}").json()["outcome"] == "timeout"


def test_more_than_the_limit_at_once_is_429(
    debug: Callable[[str], TestClient], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    client = debug(
        f"""
        while not os.path.exists({str(gate)!r}): time.sleep(0.01)
        {ANSWER}
        """
    )
    pool = client.app.state.parts.debug_pool  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as threads:
        held = [threads.submit(post, client) for _ in range(2)]
        wait_until(lambda: pool.running == 2)
        refused = post(client)
        assert client.get("/healthz").status_code == 200, "the API answers meanwhile"
        gate.touch()
        assert [answer.result(20).status_code for answer in held] == [200, 200]
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert post(client).status_code == 200


def test_a_child_that_dies_is_an_infrastructure_error_with_its_last_words(
    debug: Callable[[str], TestClient],
) -> None:
    client = debug("print('out of luck', file=sys.stderr, flush=True); os._exit(3)")
    for _ in range(2):
        rollout = post(client).json()
        assert (rollout["outcome"], rollout["reward"]) == ("infrastructure_error", None)
        assert "exit code 3" in rollout["cause"]
        assert "out of luck" in rollout["cause"]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("print('garbage', flush=True)", "not the protocol"),
        ("say([1])", "not the protocol"),
        ("say({'rollout': {'id': 1}})", "sent no rollout"),
        ("say({'error': {'code': 'broken', 'message': 'inside', 'path': None}})", "broken: inside"),
    ],
)
def test_nonsense_of_a_child_is_an_infrastructure_error(
    debug: Callable[[str], TestClient], body: str, cause: str
) -> None:
    rollout = post(debug(body)).json()
    assert rollout["outcome"] == "infrastructure_error"
    assert cause in rollout["cause"]


def test_a_child_that_cannot_start_is_an_infrastructure_error(client: TestClient) -> None:
    rollout = post(client).json()
    assert rollout["outcome"] == "infrastructure_error"
    assert "could not be started" in rollout["cause"]


def test_a_child_that_is_never_ready_is_given_up(settings: Settings) -> None:
    changes = {
        "debug_command": [sys.executable, "-c", "import time; time.sleep(600)"],
        "debug_start_seconds": 0.3,
    }
    with TestClient(create_app(settings.model_copy(update=changes))) as client:
        rollout = post(client).json()
    assert rollout["outcome"] == "infrastructure_error"
    assert "not ready within 0.3 s" in rollout["cause"]


def test_an_error_that_names_a_field_is_422(debug: Callable[[str], TestClient]) -> None:
    error = {"code": "unknown_task", "message": "no such task", "path": "task_id"}
    answer = post(debug(f"say({{'error': {error!r}}})"))
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"path": "task_id", "message": "no such task"}]


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"task_id": "ghost"}, "task_id", "no task 'ghost'"),
        (
            {"assistant": {"kind": "openai", "model": "m", "api_key_env": "NO_SUCH_KEY"}},
            "assistant.api_key_env",
            "NO_SUCH_KEY",
        ),
        (
            {"user_simulator": {"kind": "openai", "model": "m"}},
            "user_simulator.api_key_env",
            "OPENAI_API_KEY",
        ),
        ({"domain": "moon"}, "domain", "mock"),
        ({"assistant": {"kind": "openai"}}, "assistant.model", "required"),
    ],
)
def test_what_cannot_be_is_422_before_any_child_starts(
    client: TestClient, body: dict[str, Any], path: str, message: str
) -> None:
    answer = post(client, **body)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["path"] == path
    assert message in error["message"]


def test_text_that_is_not_unicode_is_repaired(debug: Callable[[str], TestClient]) -> None:
    message = "[{'role': 'assistant', 'content': '\\ud800x'}]"
    rollout = post(debug(f"say(rollout(question, messages={message}))")).json()
    assert rollout["messages"][0]["content"] == "\ufffdx"
    assert rollout["text_repaired"] is True


def test_a_conversation_of_megabytes_fits(debug: Callable[[str], TestClient]) -> None:
    message = "[{'role': 'assistant', 'content': 'x' * 3_000_000}]"
    rollout = post(debug(f"say(rollout(question, messages={message}))")).json()
    assert len(rollout["messages"][0]["content"]) == 3_000_000


def test_stopping_the_service_ends_its_children(
    settings: Settings, child_script: Callable[[str], list[str]]
) -> None:
    command = child_script("say(rollout(question, cause=str(os.getpid())))")
    with TestClient(create_app(settings.model_copy(update={"debug_command": command}))) as client:
        pid = int(post(client).json()["cause"])
        assert alive(pid)
    wait_until(lambda: not alive(pid))


def test_starting_imports_neither_torch_nor_tau2() -> None:
    code = (
        "import sys, app.main\n"
        "heavy = {'torch', 'tau2', 'litellm', 'verl', 'ray', 'agentlightning', 'worker'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
