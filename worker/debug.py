"""Debug rollouts in a child process: ``python -m worker.debug``.

The parent writes one request a line and gets one answer a line, in order; the first line out is
``{"ready": true}``, once the imports (seconds) are done. The child ends when its input does.

A request is ``{"rollout_id": "ro_…", "request": <DebugRollout>}``; an answer is
``{"rollout": <RolloutDoc>}`` or ``{"error": {"code", "message", "path"}}`` with a code of
``invalid_request``, ``unknown_task``, ``missing_key`` or ``internal``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import IO, Any

from pydantic import Field, ValidationError

from app.contract import DebugRollout, RolloutDoc, RolloutMode, Words
from worker.guard import die_with_parent


class DebugRequest(Words):
    """One line from the parent."""

    rollout_id: str = Field(min_length=1)
    request: DebugRollout


def main() -> None:
    """Serves requests until the input ends, or the parent does."""
    if sys.platform == "linux":
        # The end of the input is noticed only between requests, and a request may take an hour.
        die_with_parent(os.getppid())
    answers = _private_stdout()
    # Imported only here: they take seconds, and what they print must not reach the protocol.
    from worker.rollouts import assistants, conversation, environments, tasks  # noqa: F401

    _send(answers, {"ready": True})
    with asyncio.Runner() as runner:
        for line in sys.stdin.buffer:
            if line.strip():
                _send(answers, runner.run(_answer(line)))


def _private_stdout() -> IO[bytes]:
    """The real standard output; whatever else is printed goes to standard error from now on."""
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return private


def _send(answers: IO[bytes], document: dict[str, Any]) -> None:
    answers.write(json.dumps(document).encode() + b"\n")
    answers.flush()


async def _answer(line: bytes) -> dict[str, Any]:
    from worker.rollouts.endpoints import MissingKey
    from worker.rollouts.tasks import UnknownTask

    try:
        asked = DebugRequest.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"]).removeprefix("request.")
        return _error("invalid_request", first["msg"], path)
    try:
        rollout = await _rollout(asked.rollout_id, asked.request)
        return {"rollout": rollout.model_dump(mode="json")}
    except UnknownTask as error:
        return _error("unknown_task", str(error), "task_id")
    except MissingKey as error:
        path = "user_simulator" if _key_of_user(asked.request, error.name) else "assistant"
        return _error("missing_key", str(error), f"{path}.api_key_env")
    except Exception as error:  # noqa: BLE001 the child outlives a fault of ours, and says so
        return _error("internal", f"{type(error).__name__}: {error}", None)


async def _rollout(rollout_id: str, request: DebugRollout) -> RolloutDoc:
    from worker.rollouts.assistants import assistant_client, partner_of
    from worker.rollouts.conversation import RolloutSpec, run_rollout
    from worker.rollouts.endpoints import close
    from worker.rollouts.tasks import load_task

    task = load_task(request.domain, request.task_id)
    assistant = assistant_client(request.assistant, task)
    user = partner_of(request.assistant, request.user_simulator, task)
    spec = RolloutSpec(
        id=rollout_id,
        domain=request.domain,
        task_id=request.task_id,
        mode=RolloutMode.DEBUG,
        max_steps=request.max_steps,
        max_errors=request.max_errors,
        window_tokens=request.window_tokens,
        timeout_seconds=request.deadline_seconds,
    )
    try:
        return await run_rollout(spec, assistant, user)
    finally:
        await close(assistant)
        await close(user)


def _key_of_user(request: DebugRollout, name: str) -> bool:
    """Whether it is the user simulator's key that is missing, not the assistant's."""
    own = getattr(request.assistant, "api_key_env", None)
    return own != name or bool(os.environ.get(own))


def _error(code: str, message: str, path: str | None) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "path": path}}


if __name__ == "__main__":
    main()
