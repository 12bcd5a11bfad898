"""The queue: claims, leases and the end of attempts. The one place that hands runs to workers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlmodel import Session, col, select

from app.contract import (
    LEASE_SECONDS,
    Claim,
    FinishRequest,
    Phase,
    RunConfig,
    RunError,
    RunStatus,
)
from app.lifecycle import HELD, Trigger, change
from app.tables import Attempt, Checkpoint, Run, Worker


class LeaseLostError(Exception):
    """The caller does not hold this attempt: another one runs, or the run is over."""


def work_waits(session: Session, engines: Sequence[str], now: datetime) -> bool:
    """Whether a claim could succeed: a run is queued for these engines, or a lease has lapsed."""
    queued = select(Run.id).where(Run.status == RunStatus.QUEUED, col(Run.engine).in_(engines))
    if session.exec(queued.limit(1)).first() is not None:
        return True
    lapsed = select(Attempt.run_id).where(
        Attempt.status == "running", Attempt.lease_expires_at < now
    )
    return session.exec(lapsed.limit(1)).first() is not None


def claim(session: Session, worker: Worker, now: datetime) -> Claim | None:
    """Gives the oldest queued run that the worker can do, or nothing."""
    oldest = (
        select(Run.id)
        .where(Run.status == RunStatus.QUEUED, col(Run.engine).in_(worker.engines))
        .order_by(col(Run.id))
        .limit(1)
    )
    # One statement finds and takes it: of two workers, one sees its row and the other none.
    taken = session.execute(
        update(Run)
        .where(col(Run.id) == oldest.scalar_subquery(), col(Run.status) == RunStatus.QUEUED)
        .values(attempt=col(Run.attempt) + 1)
        .returning(col(Run.id))
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if taken is None:
        return None
    run = session.get_one(Run, taken, populate_existing=True)
    change(session, run, Trigger.CLAIM, RunStatus.RUNNING, now)
    run.worker_id = worker.id
    run.phase = Phase.STARTING.value
    run.started_at = run.started_at or now
    run.progress_at = None
    run.error = None
    attempt = Attempt(
        run_id=run.id,
        number=run.attempt,
        worker_id=worker.id,
        lease_token=secrets.token_urlsafe(24),
        lease_expires_at=now + timedelta(seconds=LEASE_SECONDS),
        claimed_at=now,
        resume_from=run.resume_from,
    )
    session.add(attempt)
    return Claim(
        run_id=run.id,
        name=run.name,
        attempt=attempt.number,
        lease_token=attempt.lease_token,
        lease_seconds=LEASE_SECONDS,
        config=RunConfig.model_validate(run.config),
        resume_from=run.resume_from,
    )


def held(session: Session, run_id: str, number: int, token: str) -> tuple[Run, Attempt] | None:
    """The attempt that a worker's call is about, locked until the transaction ends.

    Returns ``None`` when there is no such run. Errors: ``LeaseLostError``, also where the run
    has no such attempt.
    """
    run = session.get(Run, run_id, with_for_update=True)
    if run is None:
        return None
    attempt = session.get(Attempt, (run_id, number))
    if attempt is None:
        raise LeaseLostError(f"the run has no attempt {number}: its newest is {run.attempt}")
    if not secrets.compare_digest(attempt.lease_token.encode(), token.encode()):
        raise LeaseLostError(f"the lease token is not that of attempt {number}")
    if attempt.number != run.attempt:
        raise LeaseLostError(f"attempt {number} is over: attempt {run.attempt} took its place")
    if attempt.status != "running" or run.status not in HELD:
        raise LeaseLostError(
            f"attempt {number} is over ({attempt.status}); the run is {run.status}"
        )
    return run, attempt


def renew(session: Session, run: Run, attempt: Attempt, now: datetime) -> bool:
    """Renews the lease; says whether the run is to be cancelled."""
    attempt.lease_expires_at = now + timedelta(seconds=LEASE_SECONDS)
    session.add(attempt)
    worker = session.get(Worker, attempt.worker_id)
    if worker is not None:
        worker.seen_at = now
        session.add(worker)
    return run.status == RunStatus.CANCELLING


def finish(
    session: Session, run_id: str, number: int, request: FinishRequest, now: datetime
) -> Run | None:
    """Ends an attempt as its worker says. The same words said twice change nothing.

    Returns the run, or ``None`` when there is none. Errors: ``LeaseLostError``,
    ``UnlawfulTransitionError``.
    """
    try:
        found = held(session, run_id, number, request.lease_token)
    except LeaseLostError:
        attempt = session.get(Attempt, (run_id, number))
        if attempt is None or attempt.status != request.status:
            raise
        if not secrets.compare_digest(attempt.lease_token.encode(), request.lease_token.encode()):
            raise
        return session.get_one(Run, run_id)
    if found is None:
        return None
    run, attempt = found
    attempt.error = request.error.model_dump() if request.error else None
    attempt.stop_reason = request.stop_reason
    if request.status == "handed_back":
        error = request.error or RunError(
            code="handed_back", message="the worker stopped, and no further attempt is allowed"
        )
        _end_early(session, run, attempt, Trigger.HAND_BACK, error, now)
        return run
    change(session, run, Trigger.FINISH, RunStatus(request.status), now, request.stop_reason)
    run.error = attempt.error
    run.stop_reason = request.stop_reason
    _close(session, attempt, request.status, now)
    return run


def expire_leases(session: Session, now: datetime) -> list[str]:
    """Ends each attempt whose lease has lapsed; returns the ids of their runs."""
    lapsed = select(Attempt).where(Attempt.status == "running", Attempt.lease_expires_at < now)
    ended = []
    for attempt in session.exec(lapsed).all():
        run = session.get_one(Run, attempt.run_id, with_for_update=True)
        error = RunError(
            code="lease_lapsed",
            message=f"worker {attempt.worker_id} was not heard of for {LEASE_SECONDS} s",
        )
        _end_early(session, run, attempt, Trigger.LAPSE, error, now)
        ended.append(run.id)
    return ended


def forgive_absence(session: Session, now: datetime) -> None:
    """Renews every lease: while this service was away, no worker could be heard of."""
    renewed = now + timedelta(seconds=LEASE_SECONDS)
    for attempt in session.exec(select(Attempt).where(Attempt.status == "running")).all():
        attempt.lease_expires_at = max(attempt.lease_expires_at, renewed)
        session.add(attempt)


def cancel(session: Session, run: Run, now: datetime) -> None:
    """Cancels a run: at once when it waits, through its worker when it runs."""
    to = RunStatus.CANCELLED if run.status == RunStatus.QUEUED else RunStatus.CANCELLING
    change(session, run, Trigger.CANCEL, to, now)


def resume(session: Session, run: Run, now: datetime) -> None:
    """Queues a failed or cancelled run again, to continue from its newest checkpoint."""
    change(session, run, Trigger.RESUME, RunStatus.QUEUED, now)
    run.attempts_allowed = run.attempt + RunConfig.model_validate(run.config).max_run_attempts
    run.resume_from = newest_checkpoint(session, run.id)
    run.error = None
    run.stop_reason = None


def newest_checkpoint(session: Session, run_id: str) -> str | None:
    """The path of the checkpoint with the most steps."""
    newest = select(Checkpoint).where(Checkpoint.run_id == run_id)
    checkpoint = session.exec(newest.order_by(col(Checkpoint.step).desc()).limit(1)).first()
    return checkpoint.path if checkpoint else None


def _end_early(
    session: Session, run: Run, attempt: Attempt, trigger: Trigger, error: RunError, now: datetime
) -> None:
    """Ends an attempt that did not come to its own end: queued again while attempts are left."""
    if run.status == RunStatus.CANCELLING:
        change(session, run, trigger, RunStatus.CANCELLED, now)
    elif attempt.number >= run.attempts_allowed:
        change(session, run, trigger, RunStatus.FAILED, now, error.code)
        run.error = error.model_dump()
    else:
        change(session, run, trigger, RunStatus.QUEUED, now, error.code)
        run.resume_from = newest_checkpoint(session, run.id)
    ended = "lapsed" if trigger is Trigger.LAPSE else "handed_back"
    attempt.error = attempt.error or error.model_dump()
    _close(session, attempt, ended, now)


def _close(session: Session, attempt: Attempt, status: str, now: datetime) -> None:
    attempt.status = status
    attempt.finished_at = now
    session.add(attempt)
