"""A spool file: reports on disk until the API has them.

One process writes one file, a JSON document a line, each line in one ``write()``; a kill leaves
at most one torn last line. Beside it ``<file>.ack`` holds the number of bytes that the API has
acknowledged. The writer holds a lock on its file, so that whoever finds the file later knows
whether its process is alive: unlike a process id, a lock is not given to another.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
from collections import deque
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("worker.spool")

MAX_UNWRITTEN_BYTES = 64 * 1024 * 1024
"""How much is kept in memory while the disk refuses writes; what comes after is dropped."""

SUFFIX = ".jsonl"


class SpoolWriter:
    """Appends lines to a new spool file of this process. Not safe for several threads."""

    def __init__(self, spool_dir: Path, source: str) -> None:
        spool_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", source)[:60] or "reports"
        self.path = spool_dir / f"{name}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = 0
        self.dropped = 0
        self._unwritten: deque[bytes] = deque()
        self._unwritten_bytes = 0

    @property
    def unwritten(self) -> int:
        """Lines that the disk has refused so far; ``write_out`` tries them again."""
        return len(self._unwritten)

    def append(self, line: bytes) -> None:
        """Adds one line (without its line end). Never raises for a full or failing disk."""
        if self._unwritten_bytes + len(line) > MAX_UNWRITTEN_BYTES:
            self.dropped += 1
            if self.dropped == 1:
                log.error("the spool %s cannot be written: reports are dropped", self.path)
            return
        self._unwritten.append(line + b"\n")
        self._unwritten_bytes += len(line) + 1
        self.write_out()

    def write_out(self) -> None:
        """Writes what is not written yet, in order."""
        while self._unwritten:
            line = self._unwritten[0]
            try:
                written = os.write(self._fd, line)
                if written < len(line):
                    os.ftruncate(self._fd, self.size)
                    raise OSError(f"only {written} of {len(line)} bytes were written")
            except OSError as error:
                log.warning("the spool %s cannot be written: %s", self.path, error)
                return
            self.size += len(line)
            self._unwritten.popleft()
            self._unwritten_bytes -= len(line)

    def close(self) -> None:
        """Closes the file and so gives up its lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SpoolReader:
    """Reads a spool file in batches from the first byte that is not acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("rb")
        self.acknowledged = self._read_acknowledged()

    @property
    def _ack_path(self) -> Path:
        return self.path.with_name(self.path.name + ".ack")

    def _read_acknowledged(self) -> int:
        """The acknowledged offset; 0 if it is not known, since repeats are harmless."""
        try:
            offset = int(self._ack_path.read_text())
        except (FileNotFoundError, ValueError):
            return 0
        size = os.fstat(self._file.fileno()).st_size
        return offset if 0 <= offset <= size else 0

    def batch(self, max_lines: int, max_bytes: int) -> tuple[list[bytes], int]:
        """The next whole lines and the offset behind them.

        At least one line where there is one, even if it alone is over ``max_bytes``. A last line
        without its line end is not whole and is left out.
        """
        self._file.seek(self.acknowledged)
        lines: list[bytes] = []
        end = self.acknowledged
        taken = 0
        while len(lines) < max_lines:
            line = self._file.readline()
            if not line.endswith(b"\n") or (lines and taken + len(line) > max_bytes):
                break
            lines.append(line[:-1])
            taken += len(line)
            end += len(line)
        return lines, end

    def acknowledge(self, offset: int) -> None:
        """Remembers that all before ``offset`` has arrived, in memory and on disk."""
        self.acknowledged = offset
        temporary = self._ack_path.with_name(self._ack_path.name + ".tmp")
        try:
            temporary.write_text(str(offset))
            os.replace(temporary, self._ack_path)
        except OSError as error:
            # Only a restart would read it, and would then repeat reports, which is harmless.
            log.warning("the acknowledgement of %s cannot be written: %s", self.path, error)

    def lock(self) -> bool:
        """Takes the file's lock; False while the process that writes it is alive."""
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def remove(self) -> None:
        """Closes and deletes the file and its acknowledgement: all of it has arrived."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._ack_path.unlink(missing_ok=True)
