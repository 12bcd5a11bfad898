"""What a run has produced: metrics, events, log lines and checkpoints."""

from __future__ import annotations

import csv
import io
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlmodel import col, select

from app.curves import thin
from app.deps import LARGEST_INTEGER, Limit, MaxPoints, PartsDep, RunId, Seq, run_or_404
from app.documents import (
    CheckpointDoc,
    CheckpointPage,
    EventDoc,
    EventPage,
    LogLineDoc,
    LogPage,
    Metrics,
    MetricSeries,
)
from app.problems import documented
from app.tables import Checkpoint, Event, LogLine, MetricPoint

router = APIRouter(tags=["runs"])

CSV = "text/csv"
Step = Annotated[int | None, Query(ge=0, le=LARGEST_INTEGER)]


@router.get(
    "/runs/{run_id}/metrics",
    response_model=Metrics,
    responses={
        **documented(404),
        200: {"content": {CSV: {"schema": {"type": "string"}}}},
    },
)
def metrics(
    run_id: RunId,
    request: Request,
    parts: PartsDep,
    name: Annotated[list[str] | None, Query(description="Names; all of them if left out.")] = None,
    from_step: Step = None,
    to_step: Step = None,
    max_points: MaxPoints = None,
) -> Any:
    """Every metric VERL logged, as series; with ``Accept: text/csv`` as a table."""
    query = select(MetricPoint).where(MetricPoint.run_id == run_id)
    if name:
        query = query.where(col(MetricPoint.name).in_(name))
    if from_step is not None:
        query = query.where(MetricPoint.step >= from_step)
    if to_step is not None:
        query = query.where(MetricPoint.step <= to_step)
    with parts.database.read() as session:
        run = run_or_404(session, run_id)
        rows = session.exec(query.order_by(col(MetricPoint.name), col(MetricPoint.step))).all()
    series = [
        MetricSeries(
            name=series_name,
            points=[(row.step, row.value, row.at) for row in thin(list(group), max_points)],
        )
        for series_name, group in groupby(rows, key=lambda row: row.name)
    ]
    if CSV in request.headers.get("accept", ""):
        return _as_csv(series)
    return Metrics(series=series, non_finite=run.non_finite_metrics)


def _as_csv(series: list[MetricSeries]) -> Response:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["name", "step", "value", "at"])
    for one in series:
        for step, value, at in one.points:
            writer.writerow([one.name, step, value, at.isoformat()])
    return Response(text.getvalue(), media_type=CSV)


@router.get("/runs/{run_id}/events", responses=documented(404))
def events(run_id: RunId, parts: PartsDep, limit: Limit = 200, cursor: Seq = 0) -> EventPage:
    """What happened, oldest first."""
    query = select(Event).where(Event.run_id == run_id, Event.seq > cursor)
    with parts.database.read() as session:
        run_or_404(session, run_id)
        rows = session.exec(query.order_by(col(Event.seq)).limit(limit + 1)).all()
    page = [EventDoc.model_validate(row.model_dump()) for row in rows[:limit]]
    more = len(rows) > limit
    return EventPage(items=page, next_cursor=str(page[-1].seq) if more else None)


@router.get("/runs/{run_id}/logs", responses=documented(404))
def logs(
    run_id: RunId,
    parts: PartsDep,
    limit: Limit = 200,
    cursor: Annotated[
        int | None,
        Query(ge=0, le=LARGEST_INTEGER, description="A seq; left out, the last lines are given."),
    ] = None,
) -> LogPage:
    """The training process's output: its last lines, or those after a seq, oldest first."""
    with parts.database.read() as session:
        run = run_or_404(session, run_id)
        after = max(0, run.last_line - limit) if cursor is None else cursor
        query = select(LogLine).where(LogLine.run_id == run_id, LogLine.seq > after)
        rows = session.exec(query.order_by(col(LogLine.seq)).limit(limit + 1)).all()
    page = [LogLineDoc.model_validate(row.model_dump()) for row in rows[:limit]]
    more = len(rows) > limit
    return LogPage(items=page, next_cursor=str(page[-1].seq) if more else None)


@router.get("/runs/{run_id}/checkpoints", responses=documented(404))
def checkpoints(
    run_id: RunId,
    parts: PartsDep,
    limit: Limit = 50,
    cursor: Annotated[int | None, Query(ge=0, le=LARGEST_INTEGER)] = None,
) -> CheckpointPage:
    """Checkpoints, newest first; their paths are on the worker's machine."""
    query = select(Checkpoint).where(Checkpoint.run_id == run_id)
    if cursor is not None:
        query = query.where(Checkpoint.step < cursor)
    with parts.database.read() as session:
        run_or_404(session, run_id)
        rows = session.exec(query.order_by(col(Checkpoint.step).desc()).limit(limit + 1)).all()
    page = [CheckpointDoc.model_validate(row.model_dump()) for row in rows[:limit]]
    more = len(rows) > limit
    return CheckpointPage(items=page, next_cursor=str(page[-1].step) if more else None)
