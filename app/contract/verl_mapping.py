"""What the ``verl`` mapping of a config may not set, since the run itself relies on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_BY_THE_ATTEMPT = "is decided by the attempt that runs"

OWNED = {
    "actor_rollout_ref.rollout.n": "is decided by rollout.n",
    "actor_rollout_ref.rollout.temperature": "is decided by rollout.temperature",
    "data.train_batch_size": "is decided by training.batch_tasks",
    "data.max_prompt_length": "is decided by training.max_prompt_tokens",
    "data.max_response_length": "is decided by training.max_response_tokens",
    "trainer.total_epochs": "is decided by training.epochs",
    "trainer.total_training_steps": "is decided by training.max_steps",
    "trainer.default_local_dir": _BY_THE_ATTEMPT,
    "trainer.resume_mode": _BY_THE_ATTEMPT,
    "trainer.resume_from_path": _BY_THE_ATTEMPT,
    "agentlightning.trace_aggregator": "is decided by training.sample_level",
    "tautrain": "is reserved",
}
"""Paths in VERL's config that the run reads too, and why each may not be set. Were one of them
merged in, the worker, the API and the trainer would go by different numbers."""


def refuse_owned(mapping: dict[str, Any]) -> None:
    """Errors: ``ValueError`` that begins with the full path of a setting that is not to be set,
    also where something below it is set, or a mapping above it is replaced by another value."""
    for path, value in _leaves(mapping):
        for owned, why in OWNED.items():
            if path == owned or path.startswith(f"{owned}."):
                raise ValueError(f"verl.{path} {why}")
            if owned.startswith(f"{path}.") and value != {}:
                raise ValueError(f"verl.{path} must be a mapping: verl.{owned} {why}")


def _leaves(mapping: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value
