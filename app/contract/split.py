"""Which tasks a run trains on and which it validates on."""

from __future__ import annotations

import random

from app.contract.config import SplitConfig


def split_tasks(
    split: SplitConfig, base_ids: list[str], tau2_splits: dict[str, list[str]]
) -> tuple[list[str], list[str]]:
    """Which tasks a run trains on and which it validates on.

    ``base_ids`` are the ids of the domain's ``base`` split in the order of its task file,
    ``tau2_splits`` the domain's own split file. ``seeded`` is the published recipe's: the indices,
    shuffled by ``random.Random(seed)``, the first ``train_fraction`` of them for training.
    ``tau2`` takes the file's ``train`` and, for validation, its ``test``. ``only_nontrivial``
    needs baselines, so it is applied by the worker, afterwards.

    Returns the ids for training and for validation. Errors: ``ValueError`` when one of them would
    be empty or the domain has no such split.
    """
    if split.kind == "ids":
        train, validation = split.train_ids or [], split.validation_ids or []
    elif split.kind == "tau2":
        missing = [name for name in ("train", "test") if not tau2_splits.get(name)]
        if missing:
            raise ValueError(f"the domain has no τ² split {' and '.join(missing)}")
        train, validation = tau2_splits["train"], tau2_splits["test"]
    else:
        indices = list(range(len(base_ids)))
        random.Random(split.seed).shuffle(indices)
        cut = int(len(indices) * split.train_fraction)
        train = [base_ids[index] for index in indices[:cut]]
        validation = [base_ids[index] for index in indices[cut:]]
    for name, ids in (("training", train), ("validation", validation)):
        if not ids:
            raise ValueError(f"no task is left for {name}")
    return list(train), list(validation)
