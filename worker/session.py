"""One attempt's child: a process session of its own, started, listened to and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.child_log import ChildLog, secrets_of
from worker.guard import die_with_parent
from worker.processes import Ended, end_session, oom_kills, wait_for_exit

__all__ = ["ATTEMPT_COMMAND", "ChildExit", "ChildSession", "die_with_parent", "end_session"]

ATTEMPT_COMMAND: tuple[str, ...] = (sys.executable, "-m", "worker.attempt")
"""The child's command; the path of ``claim.json`` follows as its last argument."""

LOG_NAME = "output.log"

LOG_END_SECONDS = 5.0
"""How long the rest of the output may take to be read once the session has ended."""


@dataclass(frozen=True)
class ChildExit:
    """How a child ended. Exactly one of ``code`` and ``signal`` is set."""

    code: int | None
    signal: int | None
    ended_by_us: bool
    """Whether we had asked it to end before it did."""
    out_of_memory: bool
    """Whether the kernel ended a process for lack of memory while the child lived."""
    log_tail: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """In words: "exit code 3", "signal SIGKILL"."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"signal {self.signal}"


class ChildSession:
    """A running child and whatever it starts.

    The child is not reaped before its session has ended: until then its process id, which is the
    session's id, cannot be given to a stranger. Start it from a thread that lives as long as the
    child may: the kernel's parent-death signal fires when that thread ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        on_lines: Callable[[list[str]], None],
        secrets: tuple[str, ...] = (),
    ) -> None:
        """Starts ``command``; its output goes to ``directory``/output.log and to ``on_lines``.

        Raises ``OSError`` if it cannot be started.
        """
        self._oom_kills = oom_kills()
        self._ended_by_us = False
        self._exit: ChildExit | None = None
        reading, writing = os.pipe()
        try:
            self._log = ChildLog(
                reading, directory / LOG_NAME, on_lines, (*secrets, *secrets_of(environment))
            )
            self._process = subprocess.Popen(
                [*command],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        self.sid = self._process.pid

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the child itself has exited; False if it has not within ``timeout``."""
        return wait_for_exit(self.sid, timeout)

    def notify(self, exited: Callable[[], None]) -> None:
        """Calls ``exited`` on a thread when the child has exited."""

        def watch() -> None:
            self.wait()
            exited()

        threading.Thread(target=watch, name="child-watch", daemon=True).start()

    def end(self, grace_seconds: float, *, leader_seconds: float = 0.0) -> Ended:
        """Ends the child and everything in its session; see ``end_session``.

        Only before ``collect``: afterwards the session's id may be a stranger's.
        """
        if not self.wait(0):
            self._ended_by_us = True
        return end_session(self.sid, grace_seconds, leader_seconds=leader_seconds)

    def collect(self, grace_seconds: float = 5.0) -> ChildExit:
        """After the child's exit: ends what it left behind and says how it ended.

        Ends the child too if it is still there. Further calls return the same.
        """
        if self._exit is None:
            self.end(grace_seconds)
            self._log.join(LOG_END_SECONDS)
            code = self._process.wait()
            self._exit = ChildExit(
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                ended_by_us=self._ended_by_us,
                out_of_memory=oom_kills() > self._oom_kills,
                log_tail=self._log.tail(),
            )
        return self._exit
