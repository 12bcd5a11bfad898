"""A reward for training alone, for tasks that are solved in parts."""

from __future__ import annotations

from app.contract import CheckDoc, RolloutDoc

_PARTS: dict[str, str] = {
    "DB": "db",
    "COMMUNICATE": "communicate",
    "ACTION": "action",
    "ENV_ASSERTION": "env_assertion",
}
"""Parts of τ²'s reward basis and the kind of check each is made of."""


def partial_reward(rollout: RolloutDoc) -> float | None:
    """The mean over the parts of the task's reward basis of the share of their checks that passed.

    τ² multiplies the parts, and a part is 1 only where all of its checks passed; so this is 1
    exactly where τ²'s reward is, and between 0 and 1 where some of it was done. None where the
    rollout is not judged.
    """
    if rollout.reward is None:
        return None
    shares = [
        _share([check for check in rollout.checks if check.kind == _PARTS.get(part)], whole)
        for part, whole in rollout.reward_breakdown.items()
    ]
    return sum(shares) / len(shares) if shares else rollout.reward


def _share(checks: list[CheckDoc], whole: float) -> float:
    """The share that passed; τ²'s own figure of the part where it has no checks."""
    if not checks or whole >= 1:
        return whole
    return sum(check.passed for check in checks) / len(checks)
