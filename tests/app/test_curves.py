"""The arithmetic of reward curves."""

from __future__ import annotations

import math
import random

import pytest

from app.curves import Scored, mean, pass_hat, percentile, thin, train_point, validation_point


def test_only_judged_rollouts_count_in_the_mean() -> None:
    point = train_point([Scored("a", 1.0), Scored("a", 0.0), Scored("a", None)])
    assert (point["reward_mean"], point["rollouts"], point["judged"]) == (0.5, 3, 2)


def test_a_step_without_judged_rollouts_has_no_mean_rather_than_zero() -> None:
    point = train_point([Scored("a", None), Scored("b", None)])
    assert point["reward_mean"] is point["reward_p10"] is point["reward_p90"] is None
    assert (point["rollouts"], point["judged"], point["groups_without_signal"]) == (2, 0, 0)


def test_a_group_whose_rewards_are_all_equal_has_no_signal() -> None:
    rollouts = [Scored("same", 0.0), Scored("same", 0.0), Scored("same", None)]
    rollouts += [Scored("mixed", 0.0), Scored("mixed", 1.0), Scored("single", 1.0)]
    assert train_point(rollouts)["groups_without_signal"] == 1


def test_percentiles_are_interpolated() -> None:
    assert percentile([0.0, 1.0], 0.9) == pytest.approx(0.9)
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([5.0], 0.1) == 5.0
    assert percentile([], 0.1) is None


def test_shaped_rewards_have_a_mean_of_their_own() -> None:
    point = train_point([Scored("a", 0.0, 0.5), Scored("a", 1.0, 1.0), Scored("a", None)])
    assert (point["reward_mean"], point["shaped_reward_mean"]) == (0.5, 0.75)


def test_the_lift_compares_rollouts_and_baselines_of_the_same_tasks() -> None:
    rollouts = [Scored("easy", 1.0), Scored("hard", 1.0), Scored("hard2", 0.0)]
    rollouts.append(Scored("unknown", 1.0))
    do_nothing = {"easy": 1.0, "hard": 0.0, "hard2": 0.0, "not_run": 1.0}
    point = validation_point(rollouts, do_nothing, planned=5, repeats=1)
    assert point["reward_mean"] == 0.75
    assert point["reward_mean_nontrivial"] == 0.5
    assert point["lift"] == pytest.approx(1 / 3)
    assert (point["planned"], point["judged"], point["coverage"]) == (5, 4, 0.8)


def test_without_baselines_or_plan_lift_and_coverage_are_unknown() -> None:
    point = validation_point([Scored("a", 1.0)], {}, planned=None, repeats=1)
    assert point["lift"] is point["reward_mean_nontrivial"] is point["coverage"] is None


def test_pass_hat_is_the_chance_that_k_tries_all_succeed() -> None:
    """Against counting every choice of k tries, on random results with a printed seed."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(20):
        tries = {f"t{i}": [chance.random() < 0.6 for _ in range(4)] for i in range(5)}
        judged = [(task, float(ok)) for task, results in tries.items() for ok in results]
        for k in (1, 2, 3, 4):
            shares = []
            for results in tries.values():
                ways = _choices(results, k)
                shares.append(sum(all(way) for way in ways) / len(ways))
            assert pass_hat(judged, k) == pytest.approx(math.fsum(shares) / len(shares))


def _choices(results: list[bool], k: int) -> list[tuple[bool, ...]]:
    from itertools import combinations

    return list(combinations(results, k))


def test_pass_hat_leaves_out_tasks_with_too_few_judged_tries() -> None:
    point = validation_point(
        [Scored("a", 1.0), Scored("a", 1.0), Scored("b", 0.0), Scored("b", None)], {}, 4, 3
    )
    assert point["pass_hat"] == {"1": 0.5, "2": 1.0}
    assert point["coverage"] == 0.75


def test_thinning_keeps_both_ends() -> None:
    assert thin(range(10), None) == list(range(10))
    assert thin(range(10), 20) == list(range(10))
    assert thin(range(101), 5) == [0, 25, 50, 75, 100]
    assert thin(range(10), 1) == [9]
    assert mean([]) is None
