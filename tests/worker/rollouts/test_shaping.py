"""Claims about the shaped reward: 1 where tau2's is 1, and in between where part was done."""

from __future__ import annotations

from typing import Any

import pytest

from app.contract import CheckDoc, Domain, Outcome, RolloutDoc, RolloutMode
from worker.rollouts.shaping import partial_reward


def _rollout(
    breakdown: dict[str, float], checks: list[tuple[str, bool]], **more: Any
) -> RolloutDoc:
    reward = 1.0
    for part in breakdown.values():
        reward *= part
    return RolloutDoc(
        id="ro_1",
        mode=RolloutMode.TRAIN,
        domain=Domain.MOCK,
        task_id="t",
        **{"outcome": Outcome.COMPLETED, "reward": reward, **more},
        reward_breakdown=breakdown,
        checks=[CheckDoc(kind=kind, what="", passed=passed) for kind, passed in checks],
    )


@pytest.mark.parametrize(
    ("breakdown", "checks", "expected"),
    [
        ({"DB": 1.0, "COMMUNICATE": 1.0}, [("db", True), ("communicate", True)], 1.0),
        ({"DB": 0.0, "COMMUNICATE": 1.0}, [("db", False), ("communicate", True)], 0.5),
        (
            {"DB": 0.0, "COMMUNICATE": 0.0},
            [("db", False), ("communicate", True), ("communicate", False)],
            0.25,
        ),
        ({"ENV_ASSERTION": 0.0}, [("env_assertion", True)] * 3 + [("env_assertion", False)], 0.75),
        # A check outside the basis does not count.
        ({"DB": 0.0}, [("db", False), ("action", True)], 0.0),
        ({}, [], 1.0),
    ],
)
def test_it_is_the_mean_over_the_parts_of_the_share_that_passed(
    breakdown: dict[str, float], checks: list[tuple[str, bool]], expected: float
) -> None:
    assert partial_reward(_rollout(breakdown, checks)) == pytest.approx(expected)


def test_what_is_not_judged_has_none() -> None:
    assert partial_reward(_rollout({}, [], outcome=Outcome.TIMEOUT, reward=None)) is None
