"""What a rollout costs besides its models, against the same calls of τ²: ``make bench``.

CPU seconds of this process, both sides in turn, by part: an environment made, a conversation
evaluated (ours the first time for its task, and once the task's reference is remembered). Then the
memory that a conversation holds above the shared data. Fails where a goal is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tau2.environment.environment import Environment
from tau2.registry import registry

from app.contract import Domain
from bench.calls import random_call
from bench.equality import by_tau2
from bench.trajectories import Named, do_nothing, held, reference
from worker.rollouts import evaluation
from worker.rollouts.environments import new_environment
from worker.rollouts.reward import judge
from worker.rollouts.shared_data import shared_database, shared_user_database
from worker.rollouts.tasks import load_task, task_ids

LEAST_RATIO = {Domain.AIRLINE: 20.0, Domain.RETAIL: 20.0}
"""How many times cheaper an environment and its evaluation have to be, together."""

MOST_MEMORY = 5_000_000
"""Bytes that a conversation may hold above the shared data."""

RANDOM_CALLS = 40
"""Calls of the busiest conversation whose memory is measured."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a part, each the mean over the conversations."""

    tau2: float
    ours: float

    def __str__(self) -> str:
        return f"{1e3 * self.tau2:9.2f} {1e3 * self.ours:9.3f} {self.tau2 / self.ours:8.0f}"


@dataclass(frozen=True)
class Memory:
    """Bytes above the shared data: held by an open conversation, and at most by a judgement."""

    held: float
    busiest: float
    judging: float


def costs(domain: Domain, tasks: int, repeats: int) -> dict[str, Cost]:
    """Each part's cost over do-nothing and the reference of evenly spread tasks."""
    conversations = _conversations(domain, tasks)
    construct = registry.get_env_constructor(domain.value)
    count = len(conversations)
    build = Cost(
        _seconds(construct for _ in range(count)) / count,
        _seconds((lambda: new_environment(domain)) for _ in range(repeats * count))
        / (repeats * count),
    )
    their_judging = _seconds(_theirs(domain, named) for named in conversations) / count
    first, again = 0.0, 0.0
    for named in conversations:
        evaluation._REFERENCES.clear()
        first += _seconds([_ours(domain, named)])
        again += _seconds([_ours(domain, named)] * repeats) / repeats
    return {
        "build": build,
        "evaluate": Cost(their_judging, again / count),
        "evaluate, first of its task": Cost(their_judging, first / count),
        "both": Cost(build.tau2 + their_judging, build.ours + again / count),
    }


def memory(domain: Domain, tasks: int) -> Memory:
    """The memory of conversations that are open at the same time."""
    conversations = _conversations(domain, tasks)
    rng = random.Random(1)
    first = conversations[0].task
    calls = [[random_call(domain, rng)] for _ in range(RANDOM_CALLS)]
    busiest = Named("busiest", first, held(domain, first, calls, []))
    for named in [*conversations, busiest]:
        _ours(domain, named)()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        environments = [_replayed(domain, named) for named in conversations]
        open_now = tracemalloc.get_traced_memory()[0] - before
        count = len(environments)
        environments.clear()
        before = tracemalloc.get_traced_memory()[0]
        environments.append(_replayed(domain, busiest))
        busy = tracemalloc.get_traced_memory()[0] - before
        environments.clear()
        judging = 0
        for named in [*conversations, busiest]:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            _ours(domain, named)()
            judging = max(judging, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return Memory(held=open_now / count, busiest=busy, judging=judging)


def _conversations(domain: Domain, tasks: int) -> list[Named]:
    ids = task_ids(domain)
    chosen = [load_task(domain, task_id) for task_id in ids[:: max(1, len(ids) // tasks)]]
    return [
        Named(kind, task, make(domain, task))
        for task in chosen
        for kind, make in (("do-nothing", do_nothing), ("reference", reference))
        # Its evaluator raises on do-nothing, on both sides.
        if task.id != "create_task_1_with_env_assertions"
    ]


def _theirs(domain: Domain, named: Named) -> Callable[[], object]:
    return lambda: by_tau2(domain, named.task, named.run)


def _ours(domain: Domain, named: Named) -> Callable[[], object]:
    run = named.run
    return lambda: judge(domain, named.task, run.messages, run.termination_reason)


def _replayed(domain: Domain, named: Named) -> Environment:
    initial = named.task.initial_state
    environment = new_environment(domain)
    environment.set_state(
        initialization_data=initial.initialization_data if initial else None,
        initialization_actions=initial.initialization_actions if initial else None,
        message_history=named.run.messages,
    )
    return environment


def _seconds(calls: Iterable[Callable[[], object]]) -> float:
    started = time.process_time()
    for call in calls:
        call()
    return time.process_time() - started


def main() -> int:
    """Measures, prints the tables, and says by its exit status whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=8, help="of each domain")
    parser.add_argument("--repeats", type=int, default=20, help="of ours; τ² runs once")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", "Pydantic serializer warnings")
    missed = []
    print(f"{'CPU ms, each a mean':38} {'τ²':>9} {'ours':>9} {'ratio':>8}")
    for domain in Domain:
        once = _seconds([partial(shared_database, domain), partial(shared_user_database, domain)])
        found = costs(domain, asked.tasks, asked.repeats)
        for part, cost in found.items():
            print(f"{domain.value + ': ' + part:38} {cost}", flush=True)
        print(f"{domain.value + ': parse, once per process':38} {'':9} {1e3 * once:9.3f}")
        if found["both"].tau2 < LEAST_RATIO.get(domain, 1.0) * found["both"].ours:
            missed.append(
                f"{domain.value}: less than {LEAST_RATIO.get(domain, 1.0):g} times cheaper"
            )
    print(f"\n{'MB above the shared data':38} {'held':>9} {'busiest':>9} {'judging':>9}")
    for domain in Domain:
        used = memory(domain, asked.tasks)
        parts = [part / 1e6 for part in (used.held, used.busiest, used.judging)]
        print(f"{domain.value:38} " + " ".join(f"{part:9.3f}" for part in parts), flush=True)
        if max(used.held, used.busiest) + used.judging > MOST_MEMORY:
            missed.append(f"{domain.value}: more than {MOST_MEMORY / 1e6:g} MB")
    for goal in missed:
        print(f"MISSED: {goal}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
