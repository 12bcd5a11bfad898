"""What workers call: register, claim, heartbeat, reports, finish."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from sqlmodel import Session, col, select
from starlette.concurrency import run_in_threadpool

from app import queue
from app.contract import (
    LEASE_SECONDS,
    Claim,
    ClaimRequest,
    FinishRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    ReportAnswer,
    ReportBatch,
    RunStatus,
    WorkerRegistered,
    WorkerRegistration,
    now,
)
from app.deps import LARGEST_INTEGER, Cursor, Limit, Parts, PartsDep, RunId
from app.documents import FinishAnswer, WorkerDoc, WorkerPage
from app.ids import new_id
from app.jsontext import JsonRoute
from app.problems import documented, not_found
from app.reports import ingest
from app.runs import spent_budget
from app.tables import Attempt, Run, Worker

router = APIRouter(tags=["workers"], route_class=JsonRoute)

Number = Annotated[int, Path(ge=1, le=LARGEST_INTEGER)]


@router.post("/workers", status_code=201)
def register(request: WorkerRegistration, parts: PartsDep) -> WorkerRegistered:
    """Makes a worker known. A worker that starts anew registers anew."""
    at = now()
    worker = Worker(
        id=new_id("wk"),
        **request.model_dump(mode="json"),
        registered_at=at,
        seen_at=at,
    )
    with parts.database.write() as session:
        session.add(worker)
    return WorkerRegistered(id=worker.id)


@router.get("/workers")
def list_workers(parts: PartsDep, limit: Limit = 50, cursor: Cursor = None) -> WorkerPage:
    """Workers, newest first."""
    query = select(Worker).order_by(col(Worker.id).desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(Worker.id < cursor)
    with parts.database.read() as session:
        rows = session.exec(query).all()
    since = now() - timedelta(seconds=LEASE_SECONDS)
    page = [
        WorkerDoc.model_validate({**row.model_dump(), "live": row.seen_at >= since})
        for row in rows[:limit]
    ]
    return WorkerPage(items=page, next_cursor=page[-1].id if len(rows) > limit else None)


@router.post(
    "/workers/{worker_id}/claim",
    response_model=Claim,
    responses={**documented(404), 204: {"description": "No run for this worker."}},
)
async def claim(
    worker_id: Annotated[str, Path(max_length=64)],
    request: ClaimRequest,
    connection: Request,
    parts: PartsDep,
) -> Claim | Response:
    """Takes a run. Waits for one up to ``wait_seconds``, then 204."""
    loop = asyncio.get_running_loop()
    until = loop.time() + request.wait_seconds
    while True:
        with parts.wakeup.waiter() as woken:
            found = await run_in_threadpool(_try_claim, parts, worker_id)
            if found is not None:
                return found
            rest = until - loop.time()
            if rest <= 0 or parts.wakeup.stopped():
                return Response(status_code=204)
            try:
                await asyncio.wait_for(woken.wait(), rest)
            except TimeoutError:
                return Response(status_code=204)
        # A run given to a worker that has hung up would be lost until its lease lapses.
        if parts.wakeup.stopped() or await connection.is_disconnected():
            return Response(status_code=204)


def _try_claim(parts: Parts, worker_id: str) -> Claim | None:
    at = now()
    # Most claims find nothing; looking first spares them the lock of a writer.
    with parts.database.read() as session:
        worker = _worker(session, worker_id)
        seen_long_ago = (at - worker.seen_at).total_seconds() > LEASE_SECONDS / 4
        if not seen_long_ago and not queue.work_waits(session, worker.engines, at):
            return None
    with parts.database.write() as session:
        worker = _worker(session, worker_id)
        worker.seen_at = at
        session.add(worker)
        lapsed = queue.expire_leases(session, at)
        session.flush()
        taken = queue.claim(session, worker, at)
    parts.telemetry.lapses.inc(len(lapsed))
    if taken is not None:
        parts.telemetry.claims.inc()
    return taken


def _worker(session: Session, worker_id: str) -> Worker:
    worker = session.get(Worker, worker_id)
    if worker is None:
        raise not_found("worker", worker_id)
    return worker


@router.post("/runs/{run_id}/attempts/{number}/heartbeat", responses=documented(404, 409))
def heartbeat(
    run_id: RunId, number: Number, request: HeartbeatRequest, parts: PartsDep
) -> HeartbeatAnswer:
    """Renews the lease, and says whether to cancel or to end after the step."""
    with parts.database.write() as session:
        run, attempt = _held(session, run_id, number, request.lease_token)
        cancel = queue.renew(session, run, attempt, now())
        spent = spent_budget(run)
    return HeartbeatAnswer(cancel=cancel, lease_seconds=LEASE_SECONDS, spent=spent)


@router.post("/runs/{run_id}/attempts/{number}/reports", responses=documented(404, 409, 413, 503))
def reports(run_id: RunId, number: Number, batch: ReportBatch, parts: PartsDep) -> ReportAnswer:
    """Takes a batch of reports; one whose id is known changes nothing."""
    with parts.database.write() as session:
        run, attempt = _held(session, run_id, number, batch.lease_token)
        answer = ingest(session, run, attempt, batch.reports, now())
    parts.telemetry.reports.labels(result="accepted").inc(answer.accepted)
    parts.telemetry.reports.labels(result="repeated").inc(answer.repeated)
    return answer


@router.post("/runs/{run_id}/attempts/{number}/finish", responses=documented(404, 409))
def finish(run_id: RunId, number: Number, request: FinishRequest, parts: PartsDep) -> FinishAnswer:
    """Ends the attempt. Said twice, it changes nothing the second time."""
    with parts.database.write() as session:
        run = queue.finish(session, run_id, number, request, now())
        if run is None:
            raise not_found("run", run_id)
        status = RunStatus(run.status)
    if status is RunStatus.QUEUED:
        parts.wakeup.notify()
    return FinishAnswer(status=status)


def _held(session: Session, run_id: str, number: int, token: str) -> tuple[Run, Attempt]:
    found = queue.held(session, run_id, number, token)
    if found is None:
        raise not_found("run", run_id)
    return found
