"""The task catalogue, read from τ²'s JSON files without importing τ² (which takes 7 s)."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.contract import Domain, RunConfig, split_tasks


class TasksMissingError(Exception):
    """τ²'s data is not on this machine."""


@dataclass(frozen=True)
class CatalogueTask:
    """A task as the catalogue lists it."""

    id: str
    description: str | None
    splits: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """The tasks of one domain, in the order of its file, and its split file."""

    domain: Domain
    tasks: dict[str, CatalogueTask]
    splits: dict[str, list[str]]
    base_ids: list[str]
    """The tasks of the ``base`` split, in the order of the task file."""


def catalogue(domain: Domain) -> Catalogue:
    """A domain's catalogue. Errors: ``TasksMissingError``."""
    return _load(domain, _data_dir())


def full_task(domain: Domain, task_id: str) -> dict[str, Any] | None:
    """A task as τ² has it, read anew (telecom's file is too large to be kept in memory)."""
    for task in _read(_folder(domain, _data_dir()) / "tasks.json"):
        if str(task["id"]) == task_id:
            return dict(task)
    return None


def resolve_split(config: RunConfig) -> tuple[list[str], list[str]]:
    """The ids a run trains and validates on. Errors: ``ValueError`` (see ``split_tasks``)."""
    of_domain = catalogue(config.domain)
    return split_tasks(config.split, of_domain.base_ids, of_domain.splits)


def _data_dir() -> Path:
    """τ²'s data folder: ``TAU2_DATA_DIR``, else the one inside the installed package."""
    chosen = os.environ.get("TAU2_DATA_DIR")
    if chosen:
        return Path(chosen)
    spec = importlib.util.find_spec("tau2")
    if spec is None or not spec.submodule_search_locations:
        raise TasksMissingError("τ²-bench (the package tau2) is not installed")
    return Path(spec.submodule_search_locations[0]) / "data"


def _folder(domain: Domain, data_dir: Path) -> Path:
    return data_dir / "tau2" / "domains" / domain.value


@lru_cache(maxsize=32)
def _load(domain: Domain, data_dir: Path) -> Catalogue:
    folder = _folder(domain, data_dir)
    documents = _read(folder / "tasks.json")
    splits = {
        name: [str(task_id) for task_id in ids]
        for name, ids in _read(folder / "split_tasks.json").items()
    }
    members = {name: frozenset(ids) for name, ids in splits.items()}
    tasks = {}
    for document in documents:
        task_id = str(document["id"])
        names = tuple(name for name, ids in members.items() if task_id in ids)
        tasks[task_id] = CatalogueTask(task_id, _description(document), names)
    base = members.get("base", frozenset(tasks))
    return Catalogue(domain, tasks, splits, [task_id for task_id in tasks if task_id in base])


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise TasksMissingError(f"τ² has no file {path.name} for this domain") from error


def _description(document: dict[str, Any]) -> str | None:
    description = document.get("description")
    if isinstance(description, dict):
        description = description.get("purpose")
    return description if isinstance(description, str) else document.get("ticket")
