"""Claims about a step's samples: exactly what was sampled, and only of judged rollouts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import torch
from agentlightning.adapter import TracerTraceToTriplet
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import RolloutLegacy, Triplet

from app.contract import RunConfig
from worker.training.daemon import NothingToLearn, RolloutsLost, TautrainDaemon, rollout_seed

PAD = 0


def _daemon(mini_batch: int = 1) -> TautrainDaemon:
    config = RunConfig.model_validate(
        {"rollout": {"n": 2, "temperature": 0.7}, "validation": {"repeats": 3, "temperature": 0.1}}
    )
    return TautrainDaemon(
        None,
        2,
        {"model": "policy", "temperature": 0.7},
        None,
        mini_batch,
        PAD,
        store=InMemoryLightningStore(),
        adapter=TracerTraceToTriplet(),
        trace_aggregator={"level": "trajectory"},
        run_config=config,
    )


def _finish(
    daemon: TautrainDaemon, turns: list[list[tuple[list[int], list[int]]]], rewards: list[Any]
) -> None:
    """Puts finished rollouts in place: for each its turns of (prompt, sampled) and its reward."""
    for index, (rollout, reward) in enumerate(zip(turns, rewards, strict=True)):
        rollout_id = f"rollout-{index}"
        daemon._task_id_to_original_sample[rollout_id] = {"id": "task", "data_id": "group"}
        daemon._completed_rollouts_v0[rollout_id] = RolloutLegacy(
            rollout_id=rollout_id,
            final_reward=reward,
            triplets=[
                Triplet(prompt={"token_ids": prompt}, response={"token_ids": sampled})
                for prompt, sampled in rollout
            ],
        )
    daemon._total_tasks_queued = len(turns)


def _batch(daemon: TautrainDaemon) -> tuple[Any, dict[str, Any]]:
    daemon.is_train = True
    return daemon.get_train_data_batch(8, 16, torch.device("cpu"), 1)


def test_turns_are_one_sample_in_which_only_what_was_sampled_is_trained() -> None:
    daemon = _daemon()
    first, second = ([5, 6, 7], [11, 12]), ([5, 6, 7, 11, 12, 8, 9], [13, 14, 15])
    _finish(daemon, [[first, second]], [1.0])
    batch, metrics = _batch(daemon)
    mask = batch.batch["response_mask"][0].bool()
    assert batch.batch["responses"][0][mask].tolist() == [11, 12, 13, 14, 15]
    whole = batch.batch["input_ids"][0][batch.batch["attention_mask"][0].bool()].tolist()
    assert whole == [5, 6, 7, 11, 12, 8, 9, 13, 14, 15]
    assert metrics["training/n_unmerged_rollouts"] == 0


def test_a_rollout_without_a_reward_is_left_out_and_counted() -> None:
    daemon = _daemon()
    turn = ([5, 6], [11])
    _finish(daemon, [[turn], [turn], [turn], []], [1.0, None, 0.0, 1.0])
    batch, metrics = _batch(daemon)
    assert len(batch) == 2
    assert metrics["training/reward"] == 0.5
    assert metrics["training/n_rollouts_left_out"] == 2


def test_close_rewards_stay_apart() -> None:
    daemon = _daemon()
    rewards = [0.900, 0.901, 0.902, 0.903]
    _finish(daemon, [[([5, 6], [11, 12])]] * 4, rewards)
    batch, _ = _batch(daemon)
    scores = batch.batch["token_level_scores"]
    assert scores.sum(1).tolist() == pytest.approx(rewards, abs=1e-6)
    assert scores[:, 1].tolist() == pytest.approx(rewards, abs=1e-6)


@pytest.mark.parametrize("rewards", [[None, None], [1.0, None]])
def test_too_little_for_an_update_is_said_as_such(rewards: list[Any]) -> None:
    daemon = _daemon(mini_batch=2)
    _finish(daemon, [[([5], [11])]] * 2, rewards)
    with pytest.raises(NothingToLearn):
        _batch(daemon)


def test_a_validation_mean_is_over_judged_rollouts_with_its_coverage() -> None:
    daemon = _daemon()
    # The last was judged before the policy said a word, at the context limit.
    _finish(daemon, [*[[([5], [11])]] * 4, []], [1.0, None, 0.5, None, 0.0])
    daemon.is_train = False
    metrics = daemon.get_test_metrics()
    assert metrics["val/reward"] == 0.5
    assert (metrics["val/judged"], metrics["val/planned"]) == (3, 5)


def test_a_validation_without_a_judged_rollout_has_no_mean() -> None:
    daemon = _daemon()
    _finish(daemon, [[([5], [11])]], [None])
    daemon.is_train = False
    assert daemon.get_test_metrics() == {"val/planned": 1, "val/judged": 0}


def test_training_queues_a_group_for_each_task_and_validation_its_repeats() -> None:
    daemon = _daemon()
    data = {"id": ["a", "b"]}
    train, samples = daemon._requests(data, True, "resources")
    assert [request.input["id"] for request in train] == ["a", "a", "b", "b"]
    assert {sample["id"] for sample in samples.values()} == {"a", "b"}
    groups = {request.metadata["data_id"] for request in train if request.metadata}
    assert groups == set(samples)
    validation, _ = daemon._requests(data, False, "resources")
    assert len(validation) == 6
    assert {request.mode for request in validation} == {"val"}
    assert all(request.config.max_attempts == 3 for request in train)


def test_a_step_ends_when_its_last_rollout_ends() -> None:
    async def step() -> float:
        daemon = _daemon()
        requests, samples = daemon._requests({"id": ["a"]}, True, "resources")
        for rollout in await daemon.store.enqueue_many_rollouts(requests):
            daemon._task_id_to_original_sample[rollout.rollout_id] = samples[
                rollout.metadata["data_id"]
            ]
        daemon._total_tasks_queued = len(requests)
        waiting = asyncio.create_task(daemon._async_run_until_finished())
        for _ in requests:
            rollout = await daemon.store.dequeue_rollout(worker_id="runner")
            await daemon.store.update_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
            )
        ended = time.monotonic()
        await asyncio.wait_for(waiting, timeout=20)
        assert len(daemon._completed_rollouts_v0) == 2
        return time.monotonic() - ended

    assert asyncio.run(step()) < 1.0


def test_rollouts_that_nobody_holds_are_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def step() -> None:
        daemon = _daemon()
        monkeypatch.setattr(daemon, "_patience", lambda: 0.3)
        requests, samples = daemon._requests({"id": ["a"]}, True, "resources")
        for rollout in await daemon.store.enqueue_many_rollouts(requests):
            daemon._task_id_to_original_sample[rollout.rollout_id] = samples[
                rollout.metadata["data_id"]
            ]
        await asyncio.wait_for(daemon._async_run_until_finished(), timeout=20)

    with pytest.raises(RolloutsLost):
        asyncio.run(step())


def test_each_rollout_has_a_seed_of_its_own_that_is_always_the_same() -> None:
    seeds = {
        rollout_seed(0, step, train, task, repeat)
        for step in range(3)
        for train in (True, False)
        for task in ("a", "b")
        for repeat in range(4)
    }
    assert len(seeds) == 48
    assert rollout_seed(0, 1, True, "a", 2) == rollout_seed(0, 1, True, "a", 2)
    assert all(0 <= seed < 2**31 for seed in seeds)
