"""The child's output: from a pipe into a log file and into log reports, line by line."""

from __future__ import annotations

import logging
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

log = logging.getLogger("worker.child_log")

MAX_LINE_BYTES = 8 * 1024
MAX_BATCH_LINES = 200
BATCH_SECONDS = 0.3
"""How late a line may be when it is handed on."""

PROGRESS_SECONDS = 1.0
"""Of lines that overwrite each other (progress bars), one is kept in this time."""

TAIL_LINES = 50

_LINE_END = re.compile(rb"\r\n|\n|\r")
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)S?$")
_SHORTEST_SECRET = 8


class LineSplitter:
    """Cuts a byte stream into lines of text.

    NUL is removed, what is not UTF-8 becomes U+FFFD, escape sequences stay as they are. A line over
    ``MAX_LINE_BYTES`` is cut. A carriage return ends a line too, one that the next overwrites: of
    those at most one in ``PROGRESS_SECONDS`` is kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._line = bytearray()
        self._cut = 0
        self._ends_in_return = False
        self._progress: str | None = None
        self._progress_at = float("-inf")

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes."""
        data = data.replace(b"\0", b"")
        if self._ends_in_return:
            data = b"\r" + data
        # Whether a last "\r" ends a progress line or begins "\r\n" is known with the next byte.
        self._ends_in_return = data.endswith(b"\r")
        if self._ends_in_return:
            data = data[:-1]
        lines: list[str] = []
        start = 0
        for end in _LINE_END.finditer(data):
            self._take(data[start : end.start()])
            line = self._finish()
            if end.group() != b"\r":
                self._progress = None
                lines.append(line)
            elif line:
                self._progress = line
                lines += self.due()
            start = end.end()
        self._take(data[start:])
        return lines

    def due(self) -> list[str]:
        """The progress line that was held back, if its time has come."""
        if self._progress is None or self._clock() - self._progress_at < PROGRESS_SECONDS:
            return []
        line, self._progress = self._progress, None
        self._progress_at = self._clock()
        return [line]

    def close(self) -> list[str]:
        """What is left when the stream has ended."""
        rest = self._finish()
        if rest:
            return [rest]
        return [] if self._progress is None else [self._progress]

    def _take(self, piece: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._line)
        self._line += piece[:room]
        self._cut += max(0, len(piece) - room)

    def _finish(self) -> str:
        text = self._line.decode("utf-8", "replace")
        if self._cut:
            text += f" [{self._cut} bytes cut]"
        self._line.clear()
        self._cut = 0
        return text


class ChildLog:
    """Reads a pipe to its end on a thread; keeps the last lines for the run's error."""

    def __init__(
        self,
        descriptor: int,
        path: Path,
        on_lines: Callable[[list[str]], None],
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._pipe = open(descriptor, "rb", buffering=0)  # noqa: SIM115 - the thread closes it
        self._file = path.open("ab")
        self._on_lines = on_lines
        self._secrets = secrets
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._read, name="child-log", daemon=True)
        self._thread.start()

    def tail(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._tail)

    def join(self, timeout: float) -> bool:
        """Waits for the pipe's end: all its writers are gone, all lines handed on."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _read(self) -> None:
        splitter = LineSplitter()
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN | select.POLLHUP)
        lines: list[str] = []
        first_at = 0.0
        with self._pipe, self._file:
            while True:
                data = self._pipe.read(64 * 1024) if poll.poll(BATCH_SECONDS * 1000) else None
                if data:
                    fresh = splitter.feed(data)
                else:
                    fresh = splitter.due() if data is None else splitter.close()
                if fresh and not lines:
                    first_at = time.monotonic()
                lines += fresh
                late = time.monotonic() - first_at >= BATCH_SECONDS
                if lines and (late or not data or len(lines) >= MAX_BATCH_LINES):
                    self._hand_on(lines)
                    lines = []
                if data == b"":
                    return

    def _hand_on(self, lines: list[str]) -> None:
        lines = [self._without_secrets(line) for line in lines]
        self._tail.extend(lines)
        try:
            self._file.write("".join(line + "\n" for line in lines).encode())
            self._file.flush()
            for start in range(0, len(lines), MAX_BATCH_LINES):
                self._on_lines(lines[start : start + MAX_BATCH_LINES])
        except OSError as error:
            # A full disk must not stop the reading: the child would block on its own output.
            log.warning("output of the child is lost: %s", error)

    def _without_secrets(self, line: str) -> str:
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line


def secrets_of(environment: Mapping[str, str], named: Collection[str] = ()) -> tuple[str, ...]:
    """Values of an environment that no log may show: keys, tokens and passwords by their names,
    and those of the variables ``named``. Not those of a few characters (EMPTY, none): they are
    what endpoints without keys are given, and are parts of common words."""
    return tuple(
        value
        for name, value in environment.items()
        if (name in named or _SECRET_NAME.search(name.upper())) and len(value) >= _SHORTEST_SECRET
    )
