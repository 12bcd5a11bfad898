"""Debug rollouts: child processes kept warm, one conversation at a time in each.

A child is ``python -m worker.debug``: it says ``{"ready": true}`` once, then answers each line
``{"rollout_id", "request"}`` by one line, ``{"rollout": …}`` or ``{"error": {code, message,
path}}``. It imports τ², which takes seconds and must not happen in this process.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from app.contract import DebugRollout, Outcome, RolloutDoc, RolloutMode, SecondsDoc
from app.ids import new_id
from app.jsontext import parse_json
from app.problems import FieldProblem, Problem, invalid
from app.process_session import end_session
from app.settings import Settings

LINE_BYTES = 64 * 1024 * 1024
"""The longest line a child may write: a rollout with its whole conversation."""

ERROR_LINES = 10
"""How many of a dead child's last words are kept as the cause."""

LAST_WORDS_SECONDS = 1.0
RETRY_AFTER_SECONDS = 5


class ChildDiedError(Exception):
    """The child ended, or wrote what is not the protocol."""


@dataclass(eq=False)
class Child:
    """A running child and the last lines of its standard error."""

    process: Process
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=ERROR_LINES))
    listener: asyncio.Task[None] | None = None

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Sends a line and waits for the answer. Errors: ``ChildDiedError``."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        try:
            await self.process.stdin.drain()
        except ConnectionError as error:
            raise ChildDiedError(await self._cause("could not be written to")) from error
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        """Waits for a line. Errors: ``ChildDiedError``."""
        assert self.process.stdout is not None
        try:
            line = await self.process.stdout.readline()
        except ValueError as error:
            raise ChildDiedError(f"a line of more than {LINE_BYTES} bytes") from error
        if not line:
            raise ChildDiedError(await self._cause("ended"))
        try:
            answer = parse_json(line)
        except json.JSONDecodeError as error:
            raise ChildDiedError(f"not the protocol: {line[:200]!r}") from error
        if not isinstance(answer, dict):
            raise ChildDiedError(f"not the protocol: {line[:200]!r}")
        return answer

    async def end(self) -> None:
        """Ends the child and all it started."""
        end_session(self.process.pid, reaped=self.process.returncode is not None)
        await self.process.wait()
        if self.listener is not None:
            self.listener.cancel()

    async def _cause(self, what: str) -> str:
        code = await self.process.wait()
        if self.listener is not None:
            # Something that it started may hold the pipe open; its words are not waited for.
            await asyncio.wait({self.listener}, timeout=LAST_WORDS_SECONDS)
        said = "; ".join(self.last_words)
        return f"the debug process {what} (exit code {code})" + (f": {said}" if said else "")


class DebugPool:
    """Runs debug rollouts, at most ``debug_rollouts_at_once`` of them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self.running = 0

    async def run(self, request: DebugRollout) -> RolloutDoc:
        """Holds one conversation.

        Whatever befalls the child is an outcome: ``timeout`` when the deadline passes,
        ``infrastructure_error`` when it dies. Errors: ``Problem`` 429 when too many run, 422 when
        the child names a field of the request.
        """
        if self.running >= self._settings.debug_rollouts_at_once:
            raise Problem(
                429,
                f"{self.running} debug rollouts are running, which is the limit",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self.running += 1
        try:
            return await self._run(request)
        finally:
            self.running -= 1

    async def close(self) -> None:
        """Ends every child."""
        await asyncio.gather(*(child.end() for child in self._children))
        self._children.clear()
        self._idle.clear()

    async def _run(self, request: DebugRollout) -> RolloutDoc:
        rollout_id = new_id("ro")
        loop = asyncio.get_running_loop()
        try:
            child = await self._ready_child()
        except ChildDiedError as error:
            return _unjudged(rollout_id, request, Outcome.INFRASTRUCTURE_ERROR, str(error), 0.0)
        started = loop.time()
        question = {"rollout_id": rollout_id, "request": request.model_dump(mode="json")}
        whole = False
        try:
            async with asyncio.timeout(request.deadline_seconds):
                answer = await child.ask(question)
            whole = True
        except TimeoutError:
            cause = f"the deadline of {request.deadline_seconds:g} s passed"
            seconds = loop.time() - started
            return _unjudged(rollout_id, request, Outcome.TIMEOUT, cause, seconds)
        except ChildDiedError as error:
            seconds = loop.time() - started
            return _unjudged(rollout_id, request, Outcome.INFRASTRUCTURE_ERROR, str(error), seconds)
        finally:
            # An answer that was not read to its end would be taken for the next one's.
            if whole:
                self._idle.append(child)
            else:
                await self._discard(child)
        return _document(rollout_id, request, answer, loop.time() - started)

    async def _ready_child(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
            await self._discard(child)
        child = await self._start()
        try:
            await self._greeted(child)
        except BaseException:
            await self._discard(child)
            raise
        return child

    async def _greeted(self, child: Child) -> None:
        limit = self._settings.debug_start_seconds
        try:
            async with asyncio.timeout(limit):
                greeting = await child.hear()
        except TimeoutError as error:
            message = f"the debug process was not ready within {limit:g} s"
            raise ChildDiedError(message) from error
        if greeting != {"ready": True}:
            raise ChildDiedError(f"the debug process did not greet, but sent {str(greeting)[:200]}")

    async def _start(self) -> Child:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._settings.debug_command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise ChildDiedError(f"the debug process could not be started: {error}") from error
        child = Child(process)
        child.listener = asyncio.create_task(_listen(child))
        self._children.add(child)
        return child

    async def _discard(self, child: Child) -> None:
        self._children.discard(child)
        await child.end()


async def _listen(child: Child) -> None:
    """Keeps a child's standard error flowing, and its last lines."""
    assert child.process.stderr is not None
    async for line in child.process.stderr:
        child.last_words.append(line.decode(errors="replace").strip()[:500])


def _document(
    rollout_id: str, request: DebugRollout, answer: dict[str, Any], seconds: float
) -> RolloutDoc:
    error = answer.get("error")
    if isinstance(error, dict):
        message = str(error.get("message") or error.get("code"))
        if error.get("path"):
            raise invalid([FieldProblem(path=str(error["path"]), message=message)])
        cause = f"{error.get('code')}: {message}"
        return _unjudged(rollout_id, request, Outcome.INFRASTRUCTURE_ERROR, cause, seconds)
    try:
        return RolloutDoc.model_validate(answer.get("rollout")).model_copy(
            update={"id": rollout_id, "run_id": None, "mode": RolloutMode.DEBUG}
        )
    except ValidationError as problem:
        cause = f"the debug process sent no rollout: {problem.error_count()} wrong fields"
        return _unjudged(rollout_id, request, Outcome.INFRASTRUCTURE_ERROR, cause, seconds)


def _unjudged(
    rollout_id: str, request: DebugRollout, outcome: Outcome, cause: str, seconds: float
) -> RolloutDoc:
    return RolloutDoc(
        id=rollout_id,
        mode=RolloutMode.DEBUG,
        domain=request.domain,
        task_id=request.task_id,
        outcome=outcome,
        cause=cause,
        seconds=SecondsDoc(total=seconds),
    )
