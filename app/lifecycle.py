"""A run's life: which changes of status are lawful, as a table, and the one function that makes
them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlmodel import Session

from app.contract import RunStatus
from app.ids import new_id
from app.tables import Event, Run


class Trigger(StrEnum):
    """What moves a run."""

    CLAIM = "claim"
    """A worker took it."""
    CANCEL = "cancel"
    """A person asked for its end."""
    FINISH = "finish"
    """The worker says how the attempt ended."""
    HAND_BACK = "hand_back"
    """The worker stops, and the attempt with it."""
    LAPSE = "lapse"
    """The worker was not heard of within the lease."""
    RESUME = "resume"
    """A person asked for another attempt."""


_S, _T = RunStatus, Trigger

TRANSITIONS: frozenset[tuple[RunStatus, Trigger, RunStatus]] = frozenset(
    {
        (_S.QUEUED, _T.CLAIM, _S.RUNNING),
        (_S.QUEUED, _T.CANCEL, _S.CANCELLED),
        (_S.RUNNING, _T.FINISH, _S.SUCCEEDED),
        (_S.RUNNING, _T.FINISH, _S.FAILED),
        (_S.RUNNING, _T.LAPSE, _S.QUEUED),
        (_S.RUNNING, _T.LAPSE, _S.FAILED),  # no attempt is left
        (_S.RUNNING, _T.HAND_BACK, _S.QUEUED),
        (_S.RUNNING, _T.HAND_BACK, _S.FAILED),  # no attempt is left
        (_S.RUNNING, _T.CANCEL, _S.CANCELLING),
        (_S.CANCELLING, _T.FINISH, _S.CANCELLED),
        (_S.CANCELLING, _T.FINISH, _S.SUCCEEDED),
        (_S.CANCELLING, _T.FINISH, _S.FAILED),
        (_S.CANCELLING, _T.LAPSE, _S.CANCELLED),
        (_S.CANCELLING, _T.HAND_BACK, _S.CANCELLED),
        (_S.FAILED, _T.RESUME, _S.QUEUED),
        (_S.CANCELLED, _T.RESUME, _S.QUEUED),
    }
)

FINISHED: frozenset[RunStatus] = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED})
"""Where a run rests."""

HELD: frozenset[RunStatus] = frozenset({_S.RUNNING, _S.CANCELLING})
"""Where a worker holds the run."""


class UnlawfulTransitionError(Exception):
    """A change of status that the table does not have."""


def change(
    session: Session,
    run: Run,
    trigger: Trigger,
    to: RunStatus,
    at: datetime,
    reason: str | None = None,
) -> None:
    """Moves a run, and records the event ``status``.

    Errors: ``UnlawfulTransitionError``, with the run as it was.
    """
    before = RunStatus(run.status)
    if (before, trigger, to) not in TRANSITIONS:
        raise UnlawfulTransitionError(f"a run that is {before} cannot become {to} by {trigger}")
    run.status = to.value
    run.finished_at = at if to in FINISHED else None
    if to not in HELD:
        run.phase = None
    if to is RunStatus.QUEUED:
        run.worker_id = None
    data: dict[str, Any] = {"status": to.value, "previous": before.value, "by": trigger.value}
    if reason is not None:
        data["reason"] = reason
    record(session, run, "status", at, data)


def record(
    session: Session,
    run: Run,
    kind: str,
    at: datetime,
    data: dict[str, Any],
    event_id: str | None = None,
) -> None:
    """Appends an event to a run."""
    run.last_event += 1
    session.add(run)
    session.add(
        Event(
            run_id=run.id,
            seq=run.last_event,
            id=event_id or new_id("ev"),
            type=kind,
            at=at,
            attempt=run.attempt,
            data=data,
        )
    )
