"""The task catalogue and the presets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlmodel import Session, col, select

from app.contract import Domain, RunConfig, now
from app.deps import Limit, PartsDep
from app.documents import DomainDoc, PresetDoc, Presets, TaskDetail, TaskItem, TaskPage
from app.presets import PRESETS
from app.problems import documented, not_found
from app.rollouts import baselines_of_task
from app.run_documents import Baselines
from app.runs import default_preset
from app.tables import Baseline
from app.tasks import CatalogueTask, catalogue, full_task

router = APIRouter(tags=["tasks"])

MOST_TASKS = 100_000


@router.get("/tasks", responses=documented(503))
def list_tasks(
    parts: PartsDep,
    domain: Domain | None = None,
    split: Annotated[str, Query(max_length=50, description="A split of τ², or all.")] = "base",
    limit: Limit = 100,
    cursor: Annotated[int, Query(ge=0, le=MOST_TASKS)] = 0,
) -> TaskPage:
    """Domains and their tasks, in τ²'s order."""
    chosen = [domain] if domain is not None else list(Domain)
    catalogues = [catalogue(one) for one in chosen]
    tasks = [
        (of_domain.domain, task)
        for of_domain in catalogues
        for task in of_domain.tasks.values()
        if split == "all" or split in task.splits
    ]
    page = tasks[cursor : cursor + limit]
    end = cursor + len(page)
    with parts.database.read() as session:
        known = _baselines(session, [task.id for _, task in page])
    unknown = Baselines(do_nothing=None, reference=None)
    return TaskPage(
        domains=[
            DomainDoc(
                domain=one.domain,
                tasks=len(one.tasks),
                splits={name: len(ids) for name, ids in one.splits.items()},
            )
            for one in catalogues
        ],
        items=[_item(of, task, known.get((of.value, task.id), unknown)) for of, task in page],
        next_cursor=str(end) if end < len(tasks) else None,
    )


@router.get("/tasks/{domain}/{task_id:path}", responses=documented(404, 503))
def get_task(
    domain: Domain, task_id: Annotated[str, Path(max_length=500)], parts: PartsDep
) -> TaskDetail:
    """A task as τ² has it."""
    listed = catalogue(domain).tasks.get(task_id)
    task = full_task(domain, task_id) if listed else None
    if listed is None or task is None:
        raise not_found("task", f"{domain}/{task_id}")
    with parts.database.read() as session:
        baselines = baselines_of_task(session, domain, task_id)
    return TaskDetail(**_item(domain, listed, baselines).model_dump(), task=task)


@router.get("/presets")
def presets(parts: PartsDep) -> Presets:
    """The presets, with every default filled in."""
    with parts.database.read() as session:
        default = default_preset(session, now())
    return Presets(
        items=[
            PresetDoc(name=name, config=RunConfig.model_validate(partial))
            for name, partial in PRESETS.items()
        ],
        default=default,
    )


def _item(domain: Domain, task: CatalogueTask, baselines: Baselines) -> TaskItem:
    return TaskItem(
        domain=domain,
        task_id=task.id,
        description=task.description,
        splits=list(task.splits),
        baselines=baselines,
    )


def _baselines(session: Session, task_ids: list[str]) -> dict[tuple[str, str], Baselines]:
    """What is known of these tasks; of several runs, the newest says it."""
    query = select(Baseline).where(col(Baseline.task_id).in_(task_ids))
    return {
        (row.domain, row.task_id): Baselines(do_nothing=row.do_nothing, reference=row.reference)
        for row in session.exec(query.order_by(col(Baseline.run_id))).all()
    }
