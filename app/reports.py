"""Reports of a worker: each is taken once, in one transaction, with all that follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, cast

from sqlalchemy import Table, delete, func, inspect
from sqlmodel import Session, SQLModel, col, select

from app import rollouts
from app.contract import (
    BaselinesReport,
    CheckpointRemovedReport,
    CheckpointReport,
    EventReport,
    LogReport,
    MetricsReport,
    Outcome,
    PlanReport,
    ProgressReport,
    Report,
    ReportAnswer,
    RolloutMode,
    RolloutReport,
    RunConfig,
    TokensDoc,
)
from app.curves import Scored, train_point, validation_point
from app.lifecycle import record
from app.tables import (
    Attempt,
    Baseline,
    Checkpoint,
    CurvePoint,
    LogLine,
    MetricPoint,
    ReportId,
    Rollout,
    Run,
)

Touched = set[tuple[str, int]]
"""Points of curves to be made anew: (mode, step)."""

NOT_ON_A_CURVE = (Outcome.SUPERSEDED.value, Outcome.CANCELLED.value)


class ForeignRolloutError(Exception):
    """A rollout's id belongs to a rollout of another run."""


def ingest(
    session: Session, run: Run, attempt: Attempt, reports: Sequence[Report], now: datetime
) -> ReportAnswer:
    """Takes the reports that are new. Errors: ``ForeignRolloutError``."""
    new = _new_reports(session, run.id, reports)
    session.add_all([ReportId(run_id=run.id, id=report.id) for report in new])
    touched: Touched = set()
    _take_rollouts(session, run, [r for r in new if isinstance(r, RolloutReport)], touched)
    _take_metrics(session, run, [r for r in new if isinstance(r, MetricsReport)])
    for report in new:
        if isinstance(report, PlanReport):
            _take_plan(session, run, report, touched)
        elif isinstance(report, BaselinesReport):
            _take_baselines(session, run, report, touched)
        elif isinstance(report, ProgressReport):
            _take_progress(session, run, attempt, report, now)
        elif isinstance(report, EventReport):
            _take_event(session, run, report)
        elif isinstance(report, LogReport):
            _take_log(session, run, report)
        elif isinstance(report, CheckpointReport):
            _take_checkpoint(session, run, report)
        elif isinstance(report, CheckpointRemovedReport):
            _take_removal(session, run, report)
    session.add(run)
    session.flush()
    _redraw(session, run, touched, now)
    return ReportAnswer(accepted=len(new), repeated=len(reports) - len(new))


def _new_reports(session: Session, run_id: str, reports: Sequence[Report]) -> list[Report]:
    ids = [report.id for report in reports]
    known = select(ReportId.id).where(ReportId.run_id == run_id, col(ReportId.id).in_(ids))
    seen = set(session.exec(known).all())
    new = []
    for report in reports:
        if report.id not in seen:
            seen.add(report.id)
            new.append(report)
    return new


def _take_rollouts(
    session: Session, run: Run, reports: Sequence[RolloutReport], touched: Touched
) -> None:
    ids = [report.rollout.id for report in reports]
    stored = dict(
        session.exec(select(Rollout.id, Rollout.run_id).where(col(Rollout.id).in_(ids))).all()
    )
    outcomes = Counter(run.outcomes)
    for report in reports:
        document = report.rollout
        if document.id in stored:
            if stored[document.id] != run.id:
                raise ForeignRolloutError(f"the id {document.id} is that of another run's rollout")
            continue
        stored[document.id] = run.id
        # Whose rollout it is follows from the lease, not from what the sender wrote.
        document = document.model_copy(update={"run_id": run.id, "attempt": run.attempt})
        rollouts.store(session, document, report.at)
        outcomes[document.outcome.value] += 1
        _count_user_tokens(run, document.tokens)
        if document.step is not None and document.mode is not RolloutMode.DEBUG:
            touched.add((document.mode.value, document.step))
    run.outcomes = dict(outcomes)


def _count_user_tokens(run: Run, tokens: TokensDoc) -> None:
    run.user_prompt_tokens += tokens.user_prompt
    run.user_completion_tokens += tokens.user_completion


def _take_metrics(session: Session, run: Run, reports: Sequence[MetricsReport]) -> None:
    points: dict[tuple[str, int], dict[str, Any]] = {}
    for report in reports:
        run.non_finite_metrics += report.non_finite
        for name, value in report.values.items():
            points[name, report.step] = {
                "run_id": run.id,
                "name": name,
                "step": report.step,
                "value": value,
                "at": report.at,
            }
    _upsert(session, MetricPoint, points.values(), ("run_id", "name", "step"))


def _take_plan(session: Session, run: Run, report: PlanReport, touched: Touched) -> None:
    run.train_tasks = report.train_tasks
    run.validation_tasks = report.validation_tasks
    run.total_steps = report.total_steps
    run.train_rollouts_per_step = report.train_rollouts_per_step
    run.validation_rollouts = report.validation_rollouts
    touched |= _validations(session, run)


def _take_baselines(session: Session, run: Run, report: BaselinesReport, touched: Touched) -> None:
    rows = [
        {
            "run_id": run.id,
            "task_id": task.task_id,
            "domain": run.domain,
            "do_nothing": task.do_nothing,
            "reference": task.reference,
        }
        for task in report.tasks
    ]
    _upsert(session, Baseline, rows, ("run_id", "task_id"))
    touched |= _validations(session, run)


def _take_progress(
    session: Session, run: Run, attempt: Attempt, report: ProgressReport, now: datetime
) -> None:
    # Several processes report; a late word of one must not undo a newer one of another.
    if run.progress_at is not None and report.at < run.progress_at:
        return
    run.progress_at = report.at
    if (run.phase, run.step) != (report.phase.value, report.step):
        data = {"phase": report.phase.value, "step": report.step, "epoch": report.epoch}
        record(session, run, "phase", report.at, {**data, "note": report.note})
    if report.step > 0 and attempt.first_step is None:
        attempt.first_step = report.step
        attempt.first_step_at = now
    elif report.step > run.step:
        attempt.last_step_at = now
    session.add(attempt)
    run.phase = report.phase.value
    run.step = report.step
    run.epoch = report.epoch


def _take_event(session: Session, run: Run, report: EventReport) -> None:
    record(session, run, report.type, report.at, report.data, report.id)
    tokens = report.retried_tokens()
    if tokens is not None:
        _count_user_tokens(run, tokens)


def _take_log(session: Session, run: Run, report: LogReport) -> None:
    if not report.lines:
        return
    fixed = {"run_id": run.id, "at": report.at, "attempt": run.attempt}
    rows = [
        {**fixed, "seq": seq, "text": text}
        for seq, text in enumerate(report.lines, run.last_line + 1)
    ]
    run.last_line += len(rows)
    session.connection().execute(_table(LogLine).insert(), rows)


def _take_checkpoint(session: Session, run: Run, report: CheckpointReport) -> None:
    row = {
        "run_id": run.id,
        "step": report.step,
        "attempt": run.attempt,
        "path": report.path,
        "size_bytes": report.size_bytes,
        "validation_reward": report.validation_reward,
        "at": report.at,
    }
    _upsert(session, Checkpoint, [row], ("run_id", "step"))
    data = {"step": report.step, "path": report.path, "size_bytes": report.size_bytes}
    record(session, run, "checkpoint", report.at, data, report.id)


def _take_removal(session: Session, run: Run, report: CheckpointRemovedReport) -> None:
    # Whichever attempt saved it: its place on the disk is the run's, not the attempt's.
    here = (col(Checkpoint.run_id) == run.id, col(Checkpoint.step) == report.step)
    session.execute(delete(Checkpoint).where(*here))
    record(session, run, "checkpoint_removed", report.at, {"step": report.step}, report.id)


def _validations(session: Session, run: Run) -> Touched:
    """The validation points there are: plan and baselines change them."""
    query = select(CurvePoint.mode, CurvePoint.step).where(
        CurvePoint.run_id == run.id, CurvePoint.mode == RolloutMode.VALIDATION
    )
    return {(mode, step) for mode, step in session.exec(query).all()}


def _redraw(session: Session, run: Run, touched: Touched, now: datetime) -> None:
    """Makes the touched points anew, from the rollouts of the newest attempt at each step."""
    if not touched:
        return
    config = RunConfig.model_validate(run.config)
    do_nothing = {
        row.task_id: row.do_nothing
        for row in session.exec(select(Baseline).where(Baseline.run_id == run.id)).all()
        if row.do_nothing is not None
    }
    for mode, step in sorted(touched):
        here = (
            Rollout.run_id == run.id,
            Rollout.mode == mode,
            Rollout.step == step,
            col(Rollout.outcome).not_in(NOT_ON_A_CURVE),
        )
        newest = session.exec(select(func.max(Rollout.attempt)).where(*here)).one()
        columns = select(Rollout.task_id, Rollout.reward, Rollout.shaped_reward)
        rows = session.exec(columns.where(*here, Rollout.attempt == newest)).all()
        scored = [Scored(*row) for row in rows]
        if mode == RolloutMode.VALIDATION:
            values = validation_point(
                scored, do_nothing, run.validation_rollouts, config.validation.repeats
            )
        else:
            values = train_point(scored)
        point = {"run_id": run.id, "mode": mode, "step": step, "attempt": run.attempt}
        _upsert(
            session,
            CurvePoint,
            [{**point, "at": now, "values": values}],
            ("run_id", "mode", "step"),
        )


def _upsert(
    session: Session, table: type[SQLModel], rows: Iterable[dict[str, Any]], key: tuple[str, ...]
) -> None:
    """Inserts rows; one whose key is there already replaces it."""
    rows = list(rows)
    if not rows:
        return
    # Both dialects have the same clause, each in an insert of its own; only one is ever needed.
    dialect = import_module(f"sqlalchemy.dialects.{session.get_bind().dialect.name}")
    insert = dialect.insert(_table(table))
    changes = {name: insert.excluded[name] for name in rows[0] if name not in key}
    statement = insert.on_conflict_do_update(index_elements=key, set_=changes)
    session.connection().execute(statement, rows)


def _table(model: type[SQLModel]) -> Table:
    """The table itself: one statement for all rows, where the ORM would take an object each."""
    return cast("Table", inspect(model).local_table)
