"""Runs: queue, look at, stop, do again, remove."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from sqlalchemy import String, cast, or_
from sqlmodel import col, select

from app import queue
from app.contract import Domain, RunStatus, now
from app.deps import Cursor, Limit, MaxPoints, Parts, PartsDep, RunId, run_or_404
from app.jsontext import JsonRoute
from app.lifecycle import FINISHED
from app.problems import FieldProblem, conflict, documented, invalid
from app.resolve import plan, resolve
from app.run_documents import RunDoc, RunPage, RunPlan, RunRequest
from app.runs import create, default_preset, document, items, request_hash, retry, run_of_key
from app.tables import IdempotencyKey, Run

router = APIRouter(tags=["runs"], route_class=JsonRoute)

Key = Annotated[
    str | None,
    Header(min_length=1, max_length=255, description="A retry with it returns the first run."),
]


@router.post("/runs", status_code=201, responses=documented(413, 503))
def create_run(
    request: RunRequest, response: Response, parts: PartsDep, idempotency_key: Key = None
) -> RunDoc:
    """Queues a run. The body ``{}`` is valid."""
    at = now()
    wanted = request_hash(request)
    # Resolving reads task files, so it is done before the database is locked.
    with parts.database.read() as session:
        preset = default_preset(session, at)
    resolved = None
    if not _known_key(parts, idempotency_key):
        resolved = resolve(request, preset, parts.settings.key_variables)
    with parts.database.write() as session:
        known = run_of_key(session, idempotency_key) if idempotency_key else None
        if known is not None:
            if known.request_hash != wanted:
                message = "this key was used with another body"
                raise invalid([FieldProblem(path="header.Idempotency-Key", message=message)])
            run = session.get_one(Run, known.run_id)
            warnings: list[str] = []
        else:
            resolved = resolved or resolve(request, preset, parts.settings.key_variables)
            run = create(session, request, resolved, at)
            warnings = resolved.warnings
            if idempotency_key:
                session.add(IdempotencyKey(key=idempotency_key, run_id=run.id, request_hash=wanted))
        answer = document(session, run, warnings=warnings)
    parts.wakeup.notify()
    response.headers["Location"] = f"/runs/{run.id}"
    return answer


def _known_key(parts: Parts, key: str | None) -> bool:
    if key is None:
        return False
    with parts.database.read() as session:
        return run_of_key(session, key) is not None


@router.post("/runs/validate")
def validate_run(request: RunRequest, parts: PartsDep) -> RunPlan:
    """Resolves a run and says what it would do; nothing is queued."""
    with parts.database.read() as session:
        preset = default_preset(session, now())
    return plan(resolve(request, preset, parts.settings.key_variables))


@router.get("/runs")
def list_runs(
    parts: PartsDep,
    status: Annotated[list[RunStatus] | None, Query()] = None,
    preset: Annotated[str | None, Query(max_length=100)] = None,
    domain: Domain | None = None,
    tag: Annotated[str | None, Query(pattern=r"^[\w.:/+-]{1,64}$")] = None,
    text: Annotated[str | None, Query(max_length=200, description="Part of name or id.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RunPage:
    """Runs, newest first."""
    query = select(Run).order_by(col(Run.id).desc()).limit(limit + 1)
    if status:
        query = query.where(col(Run.status).in_([one.value for one in status]))
    if preset is not None:
        query = query.where(Run.preset == preset)
    if domain is not None:
        query = query.where(Run.domain == domain.value)
    if tag is not None:
        # A tag holds no quote (see run_documents.Tag), so in quotes it is found only as itself.
        query = query.where(cast(col(Run.tags), String).contains(f'"{tag}"', autoescape=True))
    if text is not None:
        query = query.where(
            or_(
                col(Run.name).icontains(text, autoescape=True),
                col(Run.id).contains(text, autoescape=True),
            )
        )
    if cursor is not None:
        query = query.where(Run.id < cursor)
    with parts.database.read() as session:
        rows = session.exec(query).all()
        page = rows[:limit]
        more = len(rows) > limit
        return RunPage(items=items(session, page), next_cursor=page[-1].id if more else None)


@router.get("/runs/{run_id}", responses=documented(404))
def get_run(run_id: RunId, parts: PartsDep, max_points: MaxPoints = None) -> RunDoc:
    """A run with its config, reward curves and attempts."""
    with parts.database.read() as session:
        return document(session, run_or_404(session, run_id), max_points)


@router.post("/runs/{run_id}/cancel", responses=documented(404, 409))
def cancel_run(run_id: RunId, parts: PartsDep) -> RunDoc:
    """Stops a run: at once when it is queued, through its worker when it runs."""
    with parts.database.write() as session:
        run = run_or_404(session, run_id, lock=True)
        queue.cancel(session, run, now())
        return document(session, run)


@router.post("/runs/{run_id}/resume", responses=documented(404, 409))
def resume_run(run_id: RunId, parts: PartsDep) -> RunDoc:
    """Queues a failed or cancelled run again, to continue from its newest checkpoint."""
    with parts.database.write() as session:
        run = run_or_404(session, run_id, lock=True)
        queue.resume(session, run, now())
        answer = document(session, run)
    parts.wakeup.notify()
    return answer


@router.post("/runs/{run_id}/retry", status_code=201, responses=documented(404))
def retry_run(run_id: RunId, response: Response, parts: PartsDep) -> RunDoc:
    """Queues the same config anew, as a new run."""
    with parts.database.write() as session:
        run = retry(session, run_or_404(session, run_id), now())
        answer = document(session, run)
    parts.wakeup.notify()
    response.headers["Location"] = f"/runs/{run.id}"
    return answer


@router.delete("/runs/{run_id}", status_code=204, responses=documented(404, 409))
def delete_run(run_id: RunId, parts: PartsDep) -> None:
    """Removes a finished run and all it holds. Checkpoints stay on their worker's disk."""
    with parts.database.write() as session:
        run = run_or_404(session, run_id, lock=True)
        if run.status not in FINISHED:
            raise conflict(f"a run that is {run.status} cannot be removed; cancel it first")
        session.delete(run)
