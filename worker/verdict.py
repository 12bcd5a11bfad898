"""From how the child ended to how the run ends."""

from __future__ import annotations

import signal
from typing import Literal

from app.contract import FinishRequest, RunError
from worker.handover import AttemptResult
from worker.session import ChildExit

Asked = Literal["cancelled", "handed_back"]

_UNEXPLAINED = frozenset({"crashed", "training_failed"})
"""Codes of the child that say no more than that an exception ended it."""


def verdict(
    lease_token: str,
    result: AttemptResult | None,
    ended: ChildExit,
    asked: Asked | None = None,
) -> FinishRequest:
    """The end of an attempt.

    ``asked`` is what we ended the child for, if we did. A child that had succeeded before it was
    asked to stop has succeeded. Codes of a failure that the child did not name itself:
    ``out_of_memory``, ``killed_by_signal``, ``crashed``, ``no_result``.
    """
    if result is not None and result.status == "succeeded":
        return FinishRequest(
            lease_token=lease_token, status="succeeded", stop_reason=result.stop_reason
        )
    if asked is not None:
        return FinishRequest(lease_token=lease_token, status=asked)
    error = result.error if result is not None else None
    return FinishRequest(
        lease_token=lease_token,
        status="failed",
        error=_with_tail(error, ended) if error is not None else _cause(ended),
        stop_reason=result.stop_reason if result is not None else None,
    )


def _with_tail(error: RunError, ended: ChildExit) -> RunError:
    """The child's own error, with its last output, and the kernel's part in a mere crash."""
    tail = error.log_tail or ended.log_tail
    if error.code in _UNEXPLAINED and ended.out_of_memory:
        return RunError(
            code="out_of_memory",
            message=f"{_OUT_OF_MEMORY} The child said: {error.message}",
            log_tail=tail,
        )
    return error.model_copy(update={"log_tail": tail})


def _cause(ended: ChildExit) -> RunError:
    code, message = _code_and_message(ended)
    return RunError(code=code, message=message, log_tail=ended.log_tail)


def _code_and_message(ended: ChildExit) -> tuple[str, str]:
    killed = ended.signal == signal.SIGKILL
    if ended.out_of_memory and (killed or (ended.signal is None and ended.code != 0)):
        return "out_of_memory", f"{_OUT_OF_MEMORY} The training process ended: {ended.describe()}."
    if ended.signal is not None:
        return "killed_by_signal", f"The training process was ended by {ended.describe()}."
    if ended.code == 0:
        return "no_result", "The training process ended without saying how it went."
    return "crashed", f"The training process crashed: {ended.describe()}."


_OUT_OF_MEMORY = (
    "The kernel ended a process for lack of memory: use a smaller batch or model, fewer runners, "
    "or a machine with more memory."
)
