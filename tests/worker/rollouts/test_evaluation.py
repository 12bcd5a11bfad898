"""Our evaluation says what τ²'s says, at a fraction of its cost."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from app.contract import Domain
from bench.equality import Tally, by_tau2, compare, conversations, shared_data_is_unchanged
from bench.trajectories import do_nothing, reference
from worker.rollouts import evaluation
from worker.rollouts.environments import new_environment
from worker.rollouts.evaluation import evaluate_simulation
from worker.rollouts.reward import judge
from worker.rollouts.tasks import load_task, task_ids

# A slice of ``make equality``: tasks (each with do-nothing and the reference) and mutations.
SLICE = {
    Domain.MOCK: (9, 100),
    Domain.AIRLINE: (2, 4),
    Domain.RETAIL: (3, 6),
    Domain.TELECOM: (10, 60),
}


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("domain", Domain)
def test_random_conversations_earn_what_tau2_gives_them(domain: Domain) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    tasks, mutations = SLICE[domain]
    chosen = rng.sample(task_ids(domain), tasks)
    tally = Tally()
    for named in conversations(domain, chosen, mutations, rng):
        compare(domain, named, {}, tally)
    assert tally.differences == []
    assert tally.compared.total() == 2 * tasks + mutations
    assert shared_data_is_unchanged(domain)


def test_a_difference_from_tau2_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task(Domain.MOCK, "create_task_1")
    [_, named] = conversations(Domain.MOCK, [task.id], 0, random.Random(1))
    monkeypatch.setattr(evaluation, "state_hash", lambda *_: "the same for all")
    monkeypatch.setattr(evaluation, "_REFERENCES", {})
    tally = Tally()
    states = {}
    compare(Domain.MOCK, named, states, tally)
    assert tally.differences == []
    named.run.messages[2:4] = []
    compare(Domain.MOCK, named, states, tally)
    assert any("reward" in difference for difference in tally.differences)
    assert any("one of our hashes for two states" in what for what in tally.differences)


def test_the_reference_is_played_once_for_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_REFERENCES", {})
    made: list[Domain] = []

    def counted(domain: Domain) -> object:
        made.append(domain)
        return new_environment(domain)

    monkeypatch.setattr(evaluation, "new_environment", counted)
    task = load_task(Domain.RETAIL, "0")
    for run, reward in ((do_nothing, 0.0), (reference, 1.0), (do_nothing, 0.0)):
        info = evaluate_simulation(
            domain=Domain.RETAIL, task=task, simulation=run(Domain.RETAIL, task)
        )
        assert info.reward == reward
    assert len(made) == 4


def test_a_task_with_other_actions_has_a_reference_of_its_own() -> None:
    task = load_task(Domain.RETAIL, "0")
    run = do_nothing(Domain.RETAIL, task)
    assert evaluate_simulation(domain=Domain.RETAIL, task=task, simulation=run).reward == 0.0
    easy = task.model_copy(deep=True)
    easy.evaluation_criteria.actions = easy.evaluation_criteria.actions[:1]
    assert evaluate_simulation(domain=Domain.RETAIL, task=easy, simulation=run).reward == 1.0


@pytest.mark.parametrize("domain", [Domain.AIRLINE, Domain.RETAIL])
def test_a_judgement_costs_a_twentieth_of_tau2s(domain: Domain) -> None:
    task = load_task(domain, task_ids(domain)[1])
    run = reference(domain, task)

    def ours() -> None:
        new_environment(domain)
        judge(domain, task, run.messages, run.termination_reason)

    ours()
    assert 20 * cpu_seconds(ours) < cpu_seconds(lambda: by_tau2(domain, task, run))


@pytest.mark.parametrize("domain", Domain)
def test_a_conversation_holds_less_than_5_mb_above_the_shared_data(domain: Domain) -> None:
    task = load_task(domain, task_ids(domain)[0])
    run = reference(domain, task)
    initial = task.initial_state
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        environment = new_environment(domain)
        environment.set_state(
            initialization_data=initial.initialization_data if initial else None,
            initialization_actions=initial.initialization_actions if initial else None,
            message_history=run.messages,
        )
        judge(domain, task, run.messages, run.termination_reason)
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert most < 5_000_000


def cpu_seconds(act: Callable[[], object]) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started
