"""What doing nothing and the reference earn on a task: the lines that a policy is held against."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.contract import (
    Assistant,
    Domain,
    DoNothingAssistant,
    ReferenceAssistant,
    RolloutMode,
    ScriptedUser,
    TaskBaseline,
)
from worker.rollouts.assistants import assistant_client, partner_of
from worker.rollouts.conversation import RolloutSpec, run_rollout
from worker.rollouts.tasks import data_hash, load_task

CACHE_FORMAT = 1
"""Raised when a change of ours can change a baseline, so that older caches are left unread."""

_NO_LIMIT = 10_000


def task_baseline(domain: Domain, task_id: str) -> TaskBaseline:
    """Both baselines of one task, by real rollouts without a model. Not for a running event loop.

    Raises:
        UnknownTask: there is no such task.
    """
    return TaskBaseline(
        task_id=task_id,
        do_nothing=_reward(domain, task_id, DoNothingAssistant()),
        reference=_reward(domain, task_id, ReferenceAssistant()),
    )


def baselines(
    domain: Domain, task_ids: Sequence[str], cache_dir: Path | None = None
) -> list[TaskBaseline]:
    """The baselines of some tasks, in their order. Not for a running event loop.

    Args:
        cache_dir: where known ones are read from and new ones written to, in a file named by the
            hash of the domain's data; None computes all of them.

    Raises:
        UnknownTask: there is no such task.
    """
    path = None if cache_dir is None else _cache_path(cache_dir, domain)
    known = {} if path is None else _read(path)
    missing = [task_id for task_id in dict.fromkeys(task_ids) if task_id not in known]
    for task_id in missing:
        known[task_id] = task_baseline(domain, task_id)
    if path is not None and missing:
        _write(path, known)
    return [known[task_id] for task_id in task_ids]


def _reward(domain: Domain, task_id: str, assistant: Assistant) -> float | None:
    task = load_task(domain, task_id)
    user = ScriptedUser()
    spec = RolloutSpec(
        id=f"ro_baseline-{assistant.kind}",
        domain=domain,
        task_id=task_id,
        mode=RolloutMode.DEBUG,
        max_steps=_NO_LIMIT,
        max_errors=_NO_LIMIT,
        window_tokens=_NO_LIMIT,
        timeout_seconds=_NO_LIMIT,
    )
    rollout = run_rollout(
        spec, assistant_client(assistant, task), partner_of(assistant, user, task)
    )
    return asyncio.run(rollout).reward


def _cache_path(cache_dir: Path, domain: Domain) -> Path:
    return cache_dir / f"baselines-{domain.value}-{data_hash(domain)}-{CACHE_FORMAT}.json"


def _read(path: Path) -> dict[str, TaskBaseline]:
    """What the cache holds; nothing where it cannot be read, as it can be made again."""
    try:
        rows = json.loads(path.read_bytes())
        found = [TaskBaseline.model_validate(row) for row in rows]
    except (OSError, ValueError, TypeError):
        return {}
    # A baseline without a reward was a fault; it may have passed.
    return {b.task_id: b for b in found if b.do_nothing is not None and b.reference is not None}


def _write(path: Path, known: dict[str, TaskBaseline]) -> None:
    """Replaces the cache at once, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, suffix=".tmp", delete=False
    ) as file:
        json.dump([baseline.model_dump() for baseline in known.values()], file, indent=1)
    os.replace(file.name, path)
