"""No session outlives its worker: called first thing in the child.

A worker that is killed cannot end its child's session. So the child asks the kernel for SIGTERM
when its parent dies, and forks a small guard that waits for the same and then ends all of the
session. The guard is a process, not a thread, because it must also act when the child itself is
dead or stuck in native code.
"""

from __future__ import annotations

import ctypes
import os
import signal

from worker.processes import end_session, wait_for_exit

PARENT_VARIABLE = "TAUTRAIN_WORKER_PID"
"""Environment variable by which the child knows which process it must not outlive."""

GRACE_SECONDS = 5.0

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> int | None:
    """Makes this process's session end when its parent is gone; returns the guard's process id.

    ``parent`` is whom it must not outlive, by default the worker that the environment names.

    Call it before any thread is started. Where this process does not lead its session (it was
    started by hand in a shell) there is no guard, only the kernel's signal, and None is returned.
    """
    if parent is None:
        parent = int(os.environ.get(PARENT_VARIABLE) or os.getppid())
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # It died before we asked, or it is not our parent at all and would never be noticed.
        raise SystemExit("the process that started this one is gone")
    if os.getsid(0) != os.getpid():
        return None
    guard = os.fork()
    if guard == 0:
        _guard(parent, sid=os.getsid(0))
    return guard


def _guard(parent: int, sid: int) -> None:
    """The guard's whole life. Never returns into the child's code."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        wait_for_exit(parent)
        end_session(sid, GRACE_SECONDS, spare={os.getpid()})
    finally:
        os._exit(0)
