"""Claims about the agent: what the trainer is given, what is tried again, and what is reported."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from agentlightning.types import Attempt, AttemptedRollout, ProxyLLM

from app.contract import Domain, Outcome, RolloutDoc, RolloutMode, RunConfig
from worker.agent import RolloutNotJudged, Tau2Agent, rollout_id


class RecordingReporter:
    """A fake reporter: keeps what it is told."""

    def __init__(self) -> None:
        self.rollouts: list[RolloutDoc] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.slept: list[float] = []

    def rollout(self, document: RolloutDoc) -> None:
        self.rollouts.append(document)

    def event(self, type: str, data: dict[str, Any]) -> None:  # noqa: A002 the contract's word
        self.events.append((type, data))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def _agent(**config: Any) -> tuple[Tau2Agent, RecordingReporter]:
    reporter = RecordingReporter()
    agent = Tau2Agent(
        RunConfig.model_validate(config),
        run_id="run_1",
        attempt=1,
        reporter=reporter,  # type: ignore[arg-type]
        tokenizer_path="unused",
        api_key="unused",
    )
    agent._sleep = reporter.sleep
    return agent, reporter


def _attempted(sequence: int = 1, mode: str = "train") -> AttemptedRollout:
    return AttemptedRollout(
        rollout_id="ro-1",
        input={"id": "create_task_1"},
        start_time=0.0,
        mode=mode,
        metadata={"step": 3, "seed": 5},
        attempt=Attempt(
            rollout_id="ro-1", attempt_id=f"at-{sequence}", sequence_id=sequence, start_time=0.0
        ),
    )


def _ends(agent: Tau2Agent, outcome: Outcome, reward: float | None, mode: RolloutMode) -> None:
    async def converse(task_id: str, *_: Any) -> RolloutDoc:
        return RolloutDoc(
            id=f"ro_{task_id}",
            mode=mode,
            domain=Domain.MOCK,
            task_id=task_id,
            outcome=outcome,
            reward=reward,
        )

    agent._converse = converse  # type: ignore[method-assign]


def _roll(agent: Tau2Agent, task_id: str = "create_task_1", sequence: int = 1) -> float:
    return asyncio.run(agent.rollout_async({"id": task_id}, {}, _attempted(sequence)))


def test_the_trainer_is_given_tau2s_reward_and_the_rollout_is_reported() -> None:
    agent, reporter = _agent()
    _ends(agent, Outcome.COMPLETED, 1.0, RolloutMode.TRAIN)
    assert _roll(agent) == 1.0
    assert [document.reward for document in reporter.rollouts] == [1.0]


def test_what_is_not_the_policys_fault_is_tried_again_before_it_is_reported() -> None:
    agent, reporter = _agent(rollout={"max_attempts": 2})
    _ends(agent, Outcome.INFRASTRUCTURE_ERROR, None, RolloutMode.TRAIN)
    with pytest.raises(RolloutNotJudged):
        _roll(agent, sequence=1)
    assert reporter.rollouts == []
    assert [kind for kind, _ in reporter.events] == ["rollout_retried"]
    with pytest.raises(RolloutNotJudged):
        _roll(agent, sequence=2)
    assert [document.outcome for document in reporter.rollouts] == [Outcome.INFRASTRUCTURE_ERROR]


def test_the_negative_control_flips_a_coin_in_training_and_shows_the_true_reward() -> None:
    agent, reporter = _agent(reward={"control": "coin_flip"})
    _ends(agent, Outcome.COMPLETED, 1.0, RolloutMode.TRAIN)
    given = [_roll(agent, f"task_{index}") for index in range(200)]
    assert 60 < sum(given) < 140
    assert {document.reward for document in reporter.rollouts} == {1.0}
    again = [_roll(agent, f"task_{index}") for index in range(200)]
    assert again == given


def test_the_negative_control_validates_with_the_true_reward() -> None:
    agent, _ = _agent(reward={"control": "coin_flip"})
    _ends(agent, Outcome.COMPLETED, 1.0, RolloutMode.VALIDATION)
    assert [_roll(agent, f"task_{index}") for index in range(50)] == [1.0] * 50


def test_a_shaped_reward_is_for_training_alone_and_stands_beside_tau2s() -> None:
    agent, reporter = _agent(reward={"shape": "partial"})

    def half(mode: RolloutMode) -> None:
        _ends(agent, Outcome.COMPLETED, 0.0, mode)
        converse = agent._converse

        async def with_checks(task_id: str, *rest: Any) -> RolloutDoc:
            document = await converse(task_id, *rest)
            document.reward_breakdown = {"DB": 1.0, "COMMUNICATE": 0.0}
            return document

        agent._converse = with_checks  # type: ignore[method-assign]

    half(RolloutMode.TRAIN)
    assert _roll(agent) == 0.5
    half(RolloutMode.VALIDATION)
    assert _roll(agent) == 0.0
    assert [(one.reward, one.shaped_reward) for one in reporter.rollouts] == [(0.0, 0.5)] * 2


def test_a_resource_without_the_proxy_is_refused(tmp_path: Path) -> None:
    agent, _ = _agent()
    with pytest.raises(KeyError):
        asyncio.run(agent.rollout_async({"id": "create_task_1"}, {}, _attempted()))


def test_the_proxys_address_belongs_to_the_rollout() -> None:
    llm = ProxyLLM(endpoint="http://127.0.0.1:1", model="policy")
    assert llm.get_base_url("ro-1", "at-1").startswith(
        "http://127.0.0.1:1/rollout/ro-1/attempt/at-1"
    )


def test_rollout_ids_differ_between_runs_attempts_and_tries() -> None:
    ids = {
        rollout_id(run, attempt, _attempted(sequence).attempt)
        for run in ("run_1", "run_2")
        for attempt in (1, 2)
        for sequence in (1, 2)
    }
    assert len(ids) == 8
    assert all(re.fullmatch("ro_[0-9a-hjkmnp-tv-z]{26}", name) for name in ids)


def test_rollout_ids_sort_by_the_time_the_try_began() -> None:
    tried = _attempted().attempt
    times = [1_796_000_000.001 * factor for factor in (1, 1.0001, 1.01, 1.5)]
    ids = [rollout_id("run", 1, tried.model_copy(update={"start_time": at})) for at in times]
    assert ids == sorted(ids)
    assert rollout_id("run", 1, tried) == rollout_id("run", 1, tried)
