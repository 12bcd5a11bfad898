"""Ends a process session: a child and everything it started, whatever their process groups."""

from __future__ import annotations

import os
import signal
from pathlib import Path

PROC = Path("/proc")
SESSION_FIELD = 3
"""Place of the session id among the fields after the command name (proc(5), ``stat``)."""


def end_session(leader: int, reaped: bool) -> None:
    """Kills every process of the session that ``leader`` leads; none left is no error.

    ``reaped`` says that the leader has ended and was waited for: then whoever has its number is
    a stranger, and so is that process's session.
    """
    members = _members(leader)
    if reaped and leader in members:
        return
    for pid in members:
        _kill(pid)


def _members(leader: int) -> list[int]:
    members = []
    for folder in PROC.glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        # The command name stands in brackets and may hold anything, brackets too.
        fields = stat.rpartition(")")[2].split()
        if int(fields[SESSION_FIELD]) == leader:
            members.append(int(folder.name))
    # Without /proc (macOS) the leader's own process group is what can be found.
    return members if PROC.is_dir() else [-leader]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
