"""Finding and ending every process of a session (Linux).

Ray puts its actors into process groups of their own, but leaves them in the session of the
process that started it, reparented ones included. So an attempt ends by session, not by group.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("worker.processes")

KILL_SECONDS = 5.0
"""How long the kernel may take to end what was killed (a process in a driver call takes time)."""

RESCAN_SECONDS = 0.2
"""How often the session is looked through again for processes that were started meanwhile."""


@dataclass(frozen=True)
class Ended:
    """What ending a session took, as process ids."""

    terminated: frozenset[int]
    killed: frozenset[int]
    left: frozenset[int]
    """Processes that even SIGKILL has not ended; empty unless the kernel holds one."""


def session_members(sid: int) -> frozenset[int]:
    """Process ids of a session, zombies left out: they are dead and wait for their parent."""
    members = set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and _session_of(int(entry)) == sid:
            members.add(int(entry))
    return frozenset(members)


def end_session(
    sid: int,
    grace_seconds: float,
    *,
    leader_seconds: float = 0.0,
    spare: Iterable[int] = (),
) -> Ended:
    """Ends every process of session ``sid`` and no other.

    The leader gets SIGTERM first and ``leader_seconds`` to put its house in order, then all get
    SIGTERM, and what lives ``grace_seconds`` later gets SIGKILL. ``spare`` are process ids to leave
    alone (the caller, where it is of that session). The caller has to keep the number ``sid`` from
    being given to a new process: by not reaping the leader before this returns.
    """
    spared = frozenset(spare)
    if os.getpid() not in spared and sid == os.getsid(0):
        raise ValueError("a process cannot end its own session without sparing itself")
    if leader_seconds > 0 and sid not in spared and _signal(sid, sid, signal.SIGTERM):
        _await_end(frozenset({sid}), leader_seconds)
    terminated: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while members := session_members(sid) - spared:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        for pid in members - terminated:
            if _signal(pid, sid, signal.SIGTERM):
                terminated.add(pid)
        _await_end(members, min(remaining, RESCAN_SECONDS))
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    while members := session_members(sid) - spared:
        if time.monotonic() > deadline:
            log.error("processes %s of session %d outlived SIGKILL", sorted(members), sid)
            break
        killed.update(pid for pid in members if _signal(pid, sid, signal.SIGKILL))
        _await_end(members, RESCAN_SECONDS)
    return Ended(frozenset(terminated), frozenset(killed), members)


def wait_for_exit(pid: int, timeout: float | None = None) -> bool:
    """Waits until a process has exited, without reaping it; False if it has not in time."""
    return _await_end(frozenset({pid}), timeout)


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory, as far as we are told.

    Counts of the machine and of this process's control group; only a rise means something.
    """
    total = 0
    for path in (Path("/proc/vmstat"), *_memory_events()):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdecimal():
                total += int(count)
    return total


def _memory_events() -> list[Path]:
    """The files that may hold this control group's count (version 2, then version 1)."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    root = Path("/sys/fs/cgroup")
    found = []
    for group in groups:
        _, controllers, path = group.split(":", 2)
        below = path.lstrip("/")
        if not controllers:
            found.append(root / below / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / below / "memory.oom_control")
    return found


def _session_of(pid: int) -> int | None:
    """The session of a living process (field 6 of its stat file); None for a dead one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command in parentheses may hold spaces and parentheses itself.
    state, _parent, _group, session = stat[stat.rindex(b")") + 2 :].split()[:4]
    return None if state in (b"Z", b"X") else int(session)


def _signal(pid: int, sid: int, number: signal.Signals) -> bool:
    """Signals a process if it is of the session; a handle keeps its number from being reused."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if _session_of(pid) != sid:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        log.warning("process %d of session %d may not be signalled", pid, sid)
        return False
    finally:
        os.close(handle)
    return True


def _await_end(pids: frozenset[int], timeout: float | None) -> bool:
    """Waits until all of ``pids`` have exited; False if some have not in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not poll.poll(left):
                return False
        finally:
            os.close(handle)
    return True
