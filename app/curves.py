"""Reward curves: the arithmetic of one step's rollouts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

SUCCESS = 1.0 - 1e-6
"""A reward of at least this is a success (τ²'s own threshold for pass^k)."""


@dataclass(frozen=True)
class Scored:
    """What a curve needs of a rollout. ``reward`` is ``None`` where it is not judged."""

    task_id: str
    reward: float | None
    shaped_reward: float | None = None


def train_point(rollouts: Sequence[Scored]) -> dict[str, Any]:
    """The values of a training point."""
    return {
        **_rewards(rollouts),
        "shaped_reward_mean": mean(
            [r.shaped_reward for r in rollouts if r.shaped_reward is not None]
        ),
    }


def validation_point(
    rollouts: Sequence[Scored],
    do_nothing: Mapping[str, float],
    planned: int | None,
    repeats: int,
) -> dict[str, Any]:
    """The values of a validation point.

    ``do_nothing`` has the baseline of each task for which it is known, ``planned`` the rollouts
    of one validation. The lift compares rollouts and baselines of the same tasks, so rollouts of
    tasks without a known baseline do not take part in it.
    """
    judged = [(r.task_id, r.reward) for r in rollouts if r.reward is not None]
    known = [(reward, do_nothing[task]) for task, reward in judged if task in do_nothing]
    return {
        **_rewards(rollouts),
        "reward_mean_nontrivial": mean([reward for reward, base in known if base < SUCCESS]),
        "lift": mean([reward - base for reward, base in known]),
        "planned": planned,
        "coverage": len(judged) / planned if planned else None,
        "pass_hat": {
            str(k): value
            for k in range(1, repeats + 1)
            if (value := pass_hat([*judged], k)) is not None
        },
    }


def is_complete(judged: int, planned: int | None, min_coverage: float) -> bool:
    """Whether so much of a validation is judged that its mean may be called its score."""
    return planned is not None and judged > 0 and judged / planned >= min_coverage


def pass_hat(judged: Sequence[tuple[str, float]], k: int) -> float | None:
    """pass^k of τ-bench (https://arxiv.org/abs/2406.12045): the mean over tasks of
    C(successes, k) / C(tries, k). ``None`` where no task was tried k times."""
    tries: dict[str, list[bool]] = defaultdict(list)
    for task, reward in judged:
        tries[task].append(reward >= SUCCESS)
    return mean(
        [
            math.comb(sum(results), k) / math.comb(len(results), k)
            for results in tries.values()
            if len(results) >= k
        ]
    )


def mean(values: Sequence[float]) -> float | None:
    """The mean; ``None`` of nothing. Errors: ``OverflowError`` where no float can hold it."""
    return _held(math.fsum(values) / len(values)) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of the values lie, interpolated; ``None`` of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = math.ceil(place)
    return _held(ordered[low] + (ordered[high] - ordered[low]) * (place - low))


def _held(value: float) -> float:
    """The value. Rewards at the end of a float's range may add up to an infinite one, which JSON
    cannot carry."""
    if not math.isfinite(value):
        raise OverflowError("rewards are too large to be summed up")
    return value


def thin(points: Sequence[T], most: int | None) -> list[T]:
    """At most ``most`` of the points, evenly spread, the first and the last among them."""
    if most is None or len(points) <= most:
        return list(points)
    if most == 1:
        return [points[-1]]
    last = len(points) - 1
    return [points[round(index * last / (most - 1))] for index in range(most)]


def _rewards(rollouts: Sequence[Scored]) -> dict[str, Any]:
    rewards = [r.reward for r in rollouts if r.reward is not None]
    groups: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reward is not None:
            groups[rollout.task_id].append(rollout.reward)
    flat = [group for group in groups.values() if len(group) > 1 and len(set(group)) == 1]
    return {
        "reward_mean": mean(rewards),
        "reward_p10": percentile(rewards, 0.1),
        "reward_p90": percentile(rewards, 0.9),
        "rollouts": len(rollouts),
        "judged": len(rewards),
        "groups_without_signal": len(flat),
    }
