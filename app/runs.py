"""Runs as documents, and how they are made."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col, select

from app.contract import LEASE_SECONDS, Engine, RolloutMode, RunConfig, RunStatus
from app.curves import is_complete, mean, thin
from app.ids import new_id
from app.lifecycle import record
from app.presets import RECIPE, TINY_CPU
from app.resolve import Resolved
from app.run_documents import (
    AttemptDoc,
    Baselines,
    BestCheckpoint,
    Curves,
    Progress,
    RunDoc,
    RunItem,
    RunLinks,
    RunRequest,
    TrainCurve,
    TrainPoint,
    UserTokens,
    ValidationCurve,
    ValidationPoint,
)
from app.tables import Attempt, Baseline, Checkpoint, CurvePoint, IdempotencyKey, Run, Worker


def default_preset(session: Session, now: datetime) -> str:
    """The GPU preset while a live worker has that engine, else the one that any CPU can run."""
    since = now - timedelta(seconds=LEASE_SECONDS)
    live = session.exec(select(Worker.engines).where(col(Worker.seen_at) >= since)).all()
    return RECIPE if any(Engine.GPU.value in engines for engines in live) else TINY_CPU


def request_hash(request: RunRequest) -> str:
    """What tells one request from another under the same idempotency key."""
    words = json.dumps(request.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()


def run_of_key(session: Session, key: str) -> IdempotencyKey | None:
    """What an idempotency key has made before."""
    return session.get(IdempotencyKey, key)


def create(session: Session, request: RunRequest, resolved: Resolved, now: datetime) -> Run:
    """Queues a new run."""
    run_id = new_id("run")
    config = resolved.config
    run = Run(
        id=run_id,
        name=request.name or f"{resolved.preset}-{run_id[-6:]}",
        preset=resolved.preset,
        tags=list(request.tags),
        domain=config.domain.value,
        engine=config.engine.value,
        status=RunStatus.QUEUED.value,
        attempts_allowed=config.max_run_attempts,
        created_at=now,
        total_steps=resolved.steps,
        validation_rollouts=resolved.validation_rollouts,
        train_tasks=resolved.train_tasks,
        validation_tasks=resolved.validation_tasks,
        config=config.model_dump(mode="json"),
        config_overrides=request.config,
        outcomes={},
    )
    _announce(session, run, now)
    return run


def retry(session: Session, old: Run, now: datetime) -> Run:
    """Queues the config of a run anew."""
    config = RunConfig.model_validate(old.config)
    run = Run(
        id=new_id("run"),
        name=old.name,
        preset=old.preset,
        tags=list(old.tags),
        domain=old.domain,
        engine=old.engine,
        status=RunStatus.QUEUED.value,
        attempts_allowed=config.max_run_attempts,
        created_at=now,
        total_steps=old.total_steps,
        validation_rollouts=old.validation_rollouts,
        train_tasks=list(old.train_tasks),
        validation_tasks=list(old.validation_tasks),
        config=dict(old.config),
        config_overrides=dict(old.config_overrides),
        outcomes={},
        retry_of=old.id,
    )
    _announce(session, run, now)
    return run


def _announce(session: Session, run: Run, now: datetime) -> None:
    session.add(run)
    session.flush()
    record(session, run, "status", now, {"status": RunStatus.QUEUED.value, "previous": None})


def items(session: Session, runs: Sequence[Run]) -> list[RunItem]:
    """Runs as lists have them."""
    best = _best_checkpoints(session, runs)
    paces = _newest_attempts(session, runs)
    return [
        RunItem.model_validate(_fields(run, best.get(run.id), paces.get(run.id))) for run in runs
    ]


def document(
    session: Session, run: Run, max_points: int | None = None, warnings: Sequence[str] = ()
) -> RunDoc:
    """A run with its config, curves and attempts."""
    attempts = session.exec(
        select(Attempt).where(Attempt.run_id == run.id).order_by(col(Attempt.number))
    ).all()
    best = _best_checkpoints(session, [run]).get(run.id)
    newest = attempts[-1] if attempts else None
    return RunDoc.model_validate(
        {
            **_fields(run, best, newest),
            "config": run.config,
            "curves": curves(session, run, max_points),
            "attempts": [_attempt(attempt) for attempt in attempts],
            "non_finite_metrics": run.non_finite_metrics,
            "warnings": list(warnings),
        }
    )


def curves(session: Session, run: Run, max_points: int | None = None) -> Curves:
    """Both reward curves of a run."""
    points: dict[str, list[dict[str, Any]]] = defaultdict(list)
    query = select(CurvePoint).where(CurvePoint.run_id == run.id).order_by(col(CurvePoint.step))
    for row in session.exec(query).all():
        points[row.mode].append({**row.values, "step": row.step, "at": row.at})
    baselines = {
        row.task_id: row
        for row in session.exec(select(Baseline).where(Baseline.run_id == run.id)).all()
    }
    train = thin(points[RolloutMode.TRAIN.value], max_points)
    validation = thin(points[RolloutMode.VALIDATION.value], max_points)
    return Curves(
        train=TrainCurve(
            points=[
                TrainPoint.model_validate({**point, "planned": run.train_rollouts_per_step})
                for point in train
            ],
            baselines=_mean_baselines(baselines, run.train_tasks),
        ),
        validation=ValidationCurve(
            points=[
                ValidationPoint.model_validate({**point, "complete": _complete(run, point)})
                for point in validation
            ],
            baselines=_mean_baselines(baselines, run.validation_tasks),
            tasks=len(run.validation_tasks),
            trained_on=len(set(run.validation_tasks) & set(run.train_tasks)),
        ),
    )


def _mean_baselines(known: dict[str, Baseline], tasks: Sequence[str]) -> Baselines:
    rows = [known[task] for task in tasks if task in known]
    return Baselines(
        do_nothing=mean([row.do_nothing for row in rows if row.do_nothing is not None]),
        reference=mean([row.reference for row in rows if row.reference is not None]),
    )


def _fields(run: Run, best: BestCheckpoint | None, newest: Attempt | None) -> dict[str, Any]:
    config = run.config
    return {
        "id": run.id,
        "name": run.name,
        "preset": run.preset,
        "tags": run.tags,
        "domain": run.domain,
        "engine": run.engine,
        "status": run.status,
        "phase": run.phase,
        "attempt": run.attempt,
        "worker": run.worker_id,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "progress": Progress(
            epoch=run.epoch,
            step=run.step,
            total_steps=run.total_steps,
            eta_seconds=_eta_seconds(run, newest),
        ),
        "config_overrides": run.config_overrides,
        "error": run.error,
        "stop_reason": run.stop_reason,
        "retry_of": run.retry_of,
        "outcomes": run.outcomes,
        "user_tokens": UserTokens(
            prompt=run.user_prompt_tokens,
            completion=run.user_completion_tokens,
            budget=config["budget"].get("max_user_tokens"),
        ),
        "best_checkpoint": best,
        "links": RunLinks(
            rollouts=f"/runs/{run.id}/rollouts",
            events=f"/runs/{run.id}/events",
            logs=f"/runs/{run.id}/logs",
            metrics=f"/runs/{run.id}/metrics",
            checkpoints=f"/runs/{run.id}/checkpoints",
            tracker=None,
        ),
    }


def _eta_seconds(run: Run, attempt: Attempt | None) -> int | None:
    """The steps that are left at the pace of this attempt's steps so far; ``None`` before two."""
    if run.status != RunStatus.RUNNING or run.total_steps is None or attempt is None:
        return None
    if attempt.first_step_at is None or attempt.last_step_at is None:
        return None
    steps = run.step - (attempt.first_step or 0)
    if steps <= 0:
        return None
    pace = (attempt.last_step_at - attempt.first_step_at).total_seconds() / steps
    # The step that is reported is the one at work, so it counts among those that are left.
    return round(pace * max(0, run.total_steps - run.step + 1))


def _attempt(attempt: Attempt) -> AttemptDoc:
    return AttemptDoc.model_validate(
        {**attempt.model_dump(), "worker": attempt.worker_id, "error": attempt.error}
    )


def _newest_attempts(session: Session, runs: Sequence[Run]) -> dict[str, Attempt]:
    ids = [run.id for run in runs if run.status == RunStatus.RUNNING]
    query = select(Attempt).where(col(Attempt.run_id).in_(ids)).order_by(col(Attempt.number))
    return {attempt.run_id: attempt for attempt in session.exec(query).all()}


def _complete(run: Run, validation: Mapping[str, Any]) -> bool:
    """Whether a stored validation point may be called the run's score at its step."""
    needed = run.config["validation"]["min_coverage"]
    return is_complete(validation["judged"], validation["planned"], needed)


def _best_checkpoints(session: Session, runs: Sequence[Run]) -> dict[str, BestCheckpoint]:
    """The best by validation reward; where a checkpoint has none, its step's validation has, if
    that is complete."""
    by_id = {run.id: run for run in runs}
    ids = list(by_id)
    scores = {
        (row.run_id, row.step): row.values["reward_mean"]
        for row in session.exec(
            select(CurvePoint).where(
                col(CurvePoint.run_id).in_(ids), CurvePoint.mode == RolloutMode.VALIDATION
            )
        ).all()
        if _complete(by_id[row.run_id], row.values)
    }
    best: dict[str, BestCheckpoint] = {}
    rows = session.exec(
        select(Checkpoint).where(col(Checkpoint.run_id).in_(ids)).order_by(col(Checkpoint.step))
    ).all()
    for row in rows:
        score = row.validation_reward
        if score is None:
            score = scores.get((row.run_id, row.step))
        before = best.get(row.run_id)
        # Of equals the later one counts: it has learned more of what is not validated.
        if score is not None and (before is None or score >= before.validation_reward):
            best[row.run_id] = BestCheckpoint(step=row.step, validation_reward=score, path=row.path)
    return best


def spent_budget(run: Run) -> str | None:
    """The field of the config whose budget the run has spent, as the API counts it."""
    most = run.config["budget"].get("max_user_tokens")
    used = run.user_prompt_tokens + run.user_completion_tokens
    return "budget.max_user_tokens" if most is not None and used >= most else None
