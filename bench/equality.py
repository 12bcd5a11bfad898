"""Whether our evaluation says what τ²'s says, bit for bit: ``make equality``.

Every task of the ``base`` splits, with do-nothing, the reference and random mutations. Compared are
all of τ²'s ``RewardInfo`` (or the exception's type and text), and the states behind it: the τ² hash
of our environment is that of τ²'s, and two of our hashes are equal exactly where τ²'s are. At the
end, the data that the conversations shared is what a fresh parse gives.

Where τ² depends on more than the conversation, both sides get the same: the ids that telecom draws
at random for new bills come from a counter, and τ²'s VPN is mended before each of its evaluations,
as one that a conversation broke stays broken in its process (``worker/rollouts/environments.py``):
ours are held to a τ² that has just started. The time of a replayed message is not compared.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tau2.data_model.simulation import RewardInfo, SimulationRun
from tau2.data_model.tasks import Task
from tau2.domains.telecom import tools as telecom_tools
from tau2.domains.telecom.user_tools import TelecomUserTools
from tau2.environment.environment import Environment
from tau2.evaluator.evaluator import EvaluationType
from tau2.evaluator.evaluator import evaluate_simulation as tau2_evaluate_simulation

from app.contract import Domain
from bench.trajectories import Named, do_nothing, mutated, reference
from worker.rollouts import evaluation, shared_data
from worker.rollouts.tasks import load_task, task_ids

MUTATIONS = {Domain.MOCK: 350, Domain.AIRLINE: 350, Domain.RETAIL: 500, Domain.TELECOM: 900}
"""How many mutated trajectories of each domain ``make equality`` compares."""

_UNBROKEN_VPN = shared_data.own_copy(TelecomUserTools.default_vpn_details)


@dataclass
class States:
    """The hashes of the states that were met, to hold ours against τ²'s."""

    ours_of: dict[str, str] = field(default_factory=dict)
    theirs_of: dict[str, str] = field(default_factory=dict)

    def disagreement(self, ours: str, theirs: str) -> str | None:
        """What is wrong about two hashes of one state, given all earlier ones."""
        if self.ours_of.setdefault(theirs, ours) != ours:
            return "two of our hashes for one state"
        if self.theirs_of.setdefault(ours, theirs) != theirs:
            return "one of our hashes for two states"
        return None


@dataclass
class Tally:
    """What one domain's comparisons came to."""

    compared: Counter[str] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def conversations(
    domain: Domain, tasks: list[str], mutations: int, rng: random.Random
) -> Iterator[Named]:
    """Do-nothing and the reference of each task, then mutations of the tasks in turn."""
    for task_id in tasks:
        task = load_task(domain, task_id)
        yield Named("do-nothing", task, do_nothing(domain, task))
        yield Named("reference", task, reference(domain, task))
    for index in range(mutations):
        task = load_task(domain, tasks[index % len(tasks)])
        yield Named("mutated", task, mutated(domain, task, rng))


def compare(domain: Domain, named: Named, states: dict[str, States], tally: Tally) -> None:
    """Evaluates one conversation both ways, and notes what came of it."""
    number = tally.compared.total()
    with _observed_ours() as ours_met, _counted_bills(number):
        ours = _outcome(
            lambda: evaluation.evaluate_simulation(
                domain=domain, task=named.task, simulation=deepcopy(named.run)
            )
        )
    TelecomUserTools.default_vpn_details = shared_data.own_copy(_UNBROKEN_VPN)
    with _observed_theirs() as theirs_met, _counted_bills(number):
        theirs = _outcome(lambda: by_tau2(domain, named.task, deepcopy(named.run)))
    tally.compared[named.kind] += 1
    tally.rewards[theirs[:40] if theirs.startswith("raised") else json.loads(theirs)["reward"]] += 1
    wrong = [f"ours {ours}\n  τ²   {theirs}"] if ours != theirs else []
    wrong += _state_differences(ours_met, theirs_met, states)
    tally.differences += [f"{named.kind}, task {named.task.id}: {what}" for what in wrong]


def by_tau2(domain: Domain, task: Task, run: SimulationRun) -> RewardInfo:
    """τ²'s own evaluation, with its own environments."""
    return tau2_evaluate_simulation(
        simulation=run,
        task=task,
        evaluation_type=EvaluationType.ALL,
        solo_mode=False,
        domain=domain.value,
    )


def shared_data_is_unchanged(domain: Domain) -> bool:
    """Whether the data that all conversations shared is still what τ² parses."""
    fresh: Any = shared_data.shared_database.__wrapped__(domain)
    fresh_user: Any = shared_data.shared_user_database.__wrapped__(domain)
    now: Any = shared_data.shared_database(domain)
    now_user: Any = shared_data.shared_user_database(domain)
    pairs = [(fresh, now), (fresh_user, now_user)]
    return all(was is None or was.get_hash() == became.get_hash() for was, became in pairs)


@dataclass(frozen=True)
class Met:
    """A state that was hashed: the hash that τ² takes of it, and ours."""

    side: str
    full: str | None
    ours: str | None = None


@contextmanager
def _observed_ours() -> Iterator[list[Met]]:
    """The states that our evaluation hashes."""
    met: list[Met] = []
    kind = evaluation._Environment
    agent_hash, user_hash = kind.get_db_hash, kind.get_user_db_hash

    def of_agent(self: Any) -> str:
        ours = agent_hash(self)
        met.append(Met("agent", self._environment.get_db_hash(), ours))
        return ours

    def of_user(self: Any) -> str | None:
        ours = user_hash(self)
        met.append(Met("user", self._environment.get_user_db_hash(), ours))
        return ours

    with (
        patch.object(kind, "get_db_hash", of_agent),
        patch.object(kind, "get_user_db_hash", of_user),
    ):
        yield met


@contextmanager
def _observed_theirs() -> Iterator[list[Met]]:
    """The states that τ²'s evaluation hashes."""
    met: list[Met] = []
    agent_hash, user_hash = Environment.get_db_hash, Environment.get_user_db_hash

    def of_agent(self: Environment) -> Any:
        met.append(Met("agent", agent_hash(self)))
        return met[-1].full

    def of_user(self: Environment) -> Any:
        met.append(Met("user", user_hash(self)))
        return met[-1].full

    with (
        patch.object(Environment, "get_db_hash", of_agent),
        patch.object(Environment, "get_user_db_hash", of_user),
    ):
        yield met


@contextmanager
def _counted_bills(evaluation_number: int) -> Iterator[None]:
    """Bills of telecom get ids that are new in each evaluation, and the same for both sides."""
    numbers = itertools.count(evaluation_number << 8)
    made = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(numbers):08x}"))
    with patch.object(telecom_tools, "uuid", made):
        yield


def _state_differences(ours: list[Met], theirs: list[Met], states: dict[str, States]) -> list[str]:
    found = []
    for met in ours:
        if met.full is not None and met.ours is not None:
            known = states.setdefault(met.side, States())
            wrong = known.disagreement(met.ours, met.full)
            found += [wrong] if wrong else []
    # τ² asks the reference first, then the conversation's environment. Ours may have remembered
    # the reference; where it has not, it is asked again at the end.
    remembered = len(ours) == 2
    for mine, its in zip(ours[:4], theirs[2:] if remembered else theirs, strict=True):
        if mine.full != its.full:
            found.append(f"the {its.side} database differs from τ²'s")
    return found


_TIME = re.compile(r"timestamp: \S+")


def _outcome(evaluate: Callable[[], RewardInfo]) -> str:
    try:
        return json.dumps(evaluate().model_dump(), default=str)
    except Exception as error:  # noqa: BLE001 an exception is an outcome like any other
        return f"raised {type(error).__name__}: {_TIME.sub('timestamp', str(error))}"


def main() -> int:
    """Compares, prints a table, and says by its exit status whether all is equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--domain", choices=[d.value for d in Domain], action="append")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of mutations")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    # A tool stores some arguments unchecked, and pydantic warns of each such value it writes.
    warnings.filterwarnings("ignore", "Pydantic serializer warnings")
    # Collecting garbage while τ² parses its databases takes half of the time.
    gc.disable()
    tallies: dict[Domain, Tally] = {}
    for domain in [d for d in Domain if not asked.domain or d.value in asked.domain]:
        tally = tallies[domain] = Tally()
        states: dict[str, States] = {}
        started = reported = time.monotonic()
        rng = random.Random(f"{asked.seed} {domain.value}")
        mutations = round(MUTATIONS[domain] * asked.scale)
        for named in conversations(domain, task_ids(domain), mutations, rng):
            before = len(tally.differences)
            compare(domain, named, states, tally)
            if tally.compared.total() % 50 == 0:
                gc.collect()
            for difference in tally.differences[before:]:
                print(f"{domain.value}: DIFFERENT: {difference[:2000]}", flush=True)
            if time.monotonic() - reported > 30:
                reported = time.monotonic()
                print(f"{domain.value}: {tally.compared.total()} compared", flush=True)
        if not shared_data_is_unchanged(domain):
            tally.differences.append("the shared data was changed")
        met = {side: len(known.ours_of) for side, known in states.items()}
        print(
            f"{domain.value}: done in {time.monotonic() - started:.0f} s; "
            f"different states met {met}; rewards {dict(tally.rewards)}",
            flush=True,
        )
    print(f"{'domain':8} {'do-nothing':>10} {'reference':>10} {'mutated':>8} {'different':>10}")
    for domain, tally in tallies.items():
        counts = [tally.compared[kind] for kind in ("do-nothing", "reference", "mutated")]
        print(
            f"{domain.value:8} {counts[0]:10} {counts[1]:10} {counts[2]:8} "
            f"{len(tally.differences):10}"
        )
    return 1 if any(tally.differences for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
