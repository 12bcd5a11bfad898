"""Rollouts in the database: written once, read back as documents."""

from __future__ import annotations

import json
import zlib
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from app.contract import Domain, RolloutDoc
from app.documents import RolloutDetail, RolloutItem
from app.run_documents import Baselines
from app.tables import Baseline, Rollout

COMPRESSION_LEVEL = 6


def store(session: Session, document: RolloutDoc, at: datetime) -> None:
    """Adds a rollout."""
    whole = document.model_dump(mode="json")
    messages = json.dumps(whole.pop("messages"), separators=(",", ":")).encode()
    session.add(
        Rollout(
            id=document.id,
            run_id=document.run_id,
            attempt=document.attempt,
            step=document.step,
            mode=document.mode.value,
            task_id=document.task_id,
            outcome=document.outcome.value,
            reward=document.reward,
            shaped_reward=document.shaped_reward,
            at=at,
            summary=whole,
            messages=zlib.compress(messages, COMPRESSION_LEVEL),
        )
    )


def item(row: Rollout) -> RolloutItem:
    """A rollout as lists have it."""
    return RolloutItem.model_validate({**row.summary, "at": row.at})


def detail(session: Session, row: Rollout) -> RolloutDetail:
    """A rollout with its conversation."""
    messages: list[Any] = json.loads(zlib.decompress(row.messages))
    domain = Domain(row.summary["domain"])
    return RolloutDetail.model_validate(
        {
            **row.summary,
            "at": row.at,
            "messages": messages,
            "baselines": baselines_of_task(session, domain, row.task_id, row.run_id),
        }
    )


def baselines_of_task(
    session: Session, domain: Domain, task_id: str, run_id: str | None = None
) -> Baselines:
    """A task's baselines: of the run if it is given, else of the newest run that knows them."""
    query = select(Baseline).where(Baseline.domain == domain, Baseline.task_id == task_id)
    if run_id is not None:
        query = query.where(Baseline.run_id == run_id)
    row = session.exec(query.order_by(col(Baseline.run_id).desc()).limit(1)).first()
    if row is None:
        return Baselines(do_nothing=None, reference=None)
    return Baselines(do_nothing=row.do_nothing, reference=row.reference)
