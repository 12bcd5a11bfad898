"""Child processes that end, whatever happens, with everything that they started themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

STOP_SECONDS = 30
"""How long a process may take over an orderly end before it is killed."""

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Child:
    """A process started here, the leader of a session of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def exit_code(self) -> int | None:
        """``None`` while it runs; negative is the signal that ended it."""
        return self.process.poll()

    def log_tail(self, lines: int = 15) -> list[str]:
        """The last lines of its output."""
        return self.log.read_text("utf-8", errors="replace").splitlines()[-lines:]


class Processes:
    """What the demo started.

    A worker's training child leaves the worker's session, and Ray's actors leave the training
    child's process group. So the sessions of all descendants are noted while they can be seen
    (``observe``), and in the end nothing may be left in any of them.
    """

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._leaders: dict[int, float] = {}
        """Session id to the start time of its leader (0: it had ended), as ids are used again."""

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> Child:
        """Starts a command; its output goes to ``log``, which it replaces."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        self.observe()
        return child

    def observe(self) -> None:
        """Notes the sessions of everything that was started here, directly or not."""
        for child in self._children:
            with contextlib.suppress(psutil.NoSuchProcess):
                leader = psutil.Process(child.process.pid)
                for process in [leader, *leader.children(recursive=True)]:
                    self._note_session(process.pid)

    def _note_session(self, pid: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            session = os.getsid(pid)
            if session in self._leaders or session == os.getsid(0):
                return
            self._leaders[session] = 0.0
            self._leaders[session] = psutil.Process(session).create_time()

    def left(self) -> list[psutil.Process]:
        """Every process that is still in one of the noted sessions."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            session = os.getsid(process.pid)
            started = self._leaders.get(session)
            if started is None or process.status() == psutil.STATUS_ZOMBIE:
                return False
            # Without its leader a session's number is not given out again; with another one it was.
            return not psutil.pid_exists(session) or (
                psutil.Process(session).create_time() == started
            )
        return False

    def stop(
        self, grace_seconds: float = STOP_SECONDS, hurry: threading.Event | None = None
    ) -> list[psutil.Process]:
        """Ends all, the last started first: a word, time to obey, then force.

        The worker goes before the API so that it can still report. Setting ``hurry`` ends the
        wait. Returns what even force did not end, which should be nothing.
        """
        hurry = hurry or threading.Event()
        self.observe()
        deadline = time.monotonic() + grace_seconds
        for child in reversed(self._children):
            if child.exit_code is None:
                child.process.terminate()
            while child.exit_code is None and time.monotonic() < deadline:
                if hurry.wait(POLL_SECONDS):
                    break
        return self.kill()

    def kill(self) -> list[psutil.Process]:
        """Ends all at once and returns what is left."""
        self.observe()
        deadline = time.monotonic() + 5
        while (left := self.left()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(1)
        return left
