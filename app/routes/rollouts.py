"""Rollouts: those of a run, one with its conversation, and one made now."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import defer
from sqlmodel import col, select
from starlette.concurrency import run_in_threadpool

from app.contract import (
    DebugRollout,
    Outcome,
    RolloutDoc,
    RolloutMode,
    key_not_allowed,
    key_variables,
    now,
)
from app.deps import LARGEST_INTEGER, Cursor, Limit, Parts, PartsDep, RunId, run_or_404
from app.documents import RolloutDetail, RolloutPage
from app.jsontext import JsonRoute
from app.problems import FieldProblem, Problem, documented, invalid, not_found
from app.rollouts import detail, item, store
from app.tables import Rollout
from app.tasks import catalogue

router = APIRouter(tags=["rollouts"], route_class=JsonRoute)

WITHOUT_MESSAGES = defer(cast("Any", Rollout.messages))
Reward = Annotated[float | None, Query(allow_inf_nan=False)]


@router.get("/runs/{run_id}/rollouts", responses=documented(404))
def list_rollouts(
    run_id: RunId,
    parts: PartsDep,
    step: Annotated[int | None, Query(ge=0, le=LARGEST_INTEGER)] = None,
    mode: RolloutMode | None = None,
    task_id: Annotated[str | None, Query(max_length=500)] = None,
    outcome: Outcome | None = None,
    min_reward: Reward = None,
    max_reward: Reward = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RolloutPage:
    """Rollouts of a run, newest first."""
    query = select(Rollout).where(Rollout.run_id == run_id)
    if step is not None:
        query = query.where(Rollout.step == step)
    if mode is not None:
        query = query.where(Rollout.mode == mode.value)
    if task_id is not None:
        query = query.where(Rollout.task_id == task_id)
    if outcome is not None:
        query = query.where(Rollout.outcome == outcome.value)
    if min_reward is not None:
        query = query.where(col(Rollout.reward) >= min_reward)
    if max_reward is not None:
        query = query.where(col(Rollout.reward) <= max_reward)
    if cursor is not None:
        query = query.where(Rollout.id < cursor)
    query = query.order_by(col(Rollout.id).desc()).limit(limit + 1)
    with parts.database.read() as session:
        run_or_404(session, run_id)
        rows = session.exec(query.options(WITHOUT_MESSAGES)).all()
        page = [item(row) for row in rows[:limit]]
    more = len(rows) > limit
    return RolloutPage(items=page, next_cursor=page[-1].id if more else None)


@router.get("/rollouts/{rollout_id}", responses=documented(404))
def get_rollout(rollout_id: Annotated[str, Path(max_length=200)], parts: PartsDep) -> RolloutDetail:
    """One rollout with its whole conversation."""
    with parts.database.read() as session:
        row = session.get(Rollout, rollout_id)
        if row is None:
            raise not_found("rollout", rollout_id)
        return detail(session, row)


@router.post("/rollouts/debug", responses=documented(413, 429, 503))
async def debug_rollout(
    request: DebugRollout, connection: Request, parts: PartsDep
) -> RolloutDetail:
    """One task, one conversation, now. Passing its deadline is an outcome, not an error.

    Hanging up ends it.
    """
    await run_in_threadpool(_check, request, parts.settings.key_variables)
    rollout = await _unless_hung_up(connection, parts.debug_pool.run(request))
    parts.telemetry.debug_rollouts.labels(outcome=rollout.outcome.value).inc()
    return await run_in_threadpool(_keep, parts, rollout)


async def _unless_hung_up(connection: Request, work: Coroutine[Any, Any, RolloutDoc]) -> RolloutDoc:
    """What ``work`` returns; it is cancelled when the caller hangs up, which frees its slot."""
    task = asyncio.create_task(work)
    hung_up = asyncio.create_task(_hung_up(connection))
    try:
        await asyncio.wait({task, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Problem(503, "the caller hung up")  # which nobody reads
        return task.result()
    finally:
        task.cancel()
        hung_up.cancel()
        await asyncio.gather(task, hung_up, return_exceptions=True)


async def _hung_up(connection: Request) -> None:
    while (await connection.receive())["type"] != "http.disconnect":
        pass


def _check(request: DebugRollout, allowed_keys: str) -> None:
    """Refuses what no child need be started for."""
    problems = []
    if request.task_id not in catalogue(request.domain).tasks:
        message = f"domain {request.domain} has no task {request.task_id!r}"
        problems.append(FieldProblem(path="task_id", message=message))
    for name in ("assistant", "user_simulator"):
        part = getattr(request, name)
        if part.kind != "openai":
            continue
        refusal = key_not_allowed(part.api_key_env, key_variables(allowed_keys), "the API")
        if refusal is None and not os.environ.get(part.api_key_env):
            refusal = f"the API's environment has no {part.api_key_env}"
        if refusal is not None:
            problems.append(FieldProblem(path=f"{name}.api_key_env", message=refusal))
    if problems:
        raise invalid(problems)


def _keep(parts: Parts, rollout: RolloutDoc) -> RolloutDetail:
    with parts.database.write() as session:
        store(session, rollout, now())
        session.flush()
        return detail(session, session.get_one(Rollout, rollout.id))
