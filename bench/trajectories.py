"""Conversations without a model: do-nothing, reference, and random mutations of the reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tau2.data_model.message import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from tau2.data_model.simulation import SimulationRun, TerminationReason
from tau2.data_model.tasks import Task

from app.contract import Domain
from bench.calls import Made, random_call
from worker.rollouts.environments import new_environment
from worker.rollouts.reference import required_strings
from worker.rollouts.tasks import load_task, task_ids


def do_nothing(domain: Domain, task: Task) -> SimulationRun:
    """One greeting, and the user leaves."""
    return held(domain, task, [], [])


def reference(domain: Domain, task: Task) -> SimulationRun:
    """The reference actions, one call a message, then everything that has to be said."""
    turns = [[made] for made in reference_calls(task)]
    return held(domain, task, turns, required_strings(task))


def mutated(domain: Domain, task: Task, rng: random.Random) -> SimulationRun:
    """The reference with one to four random changes to its calls, speech, messages or end."""
    calls = reference_calls(task)
    for _ in range(rng.randint(1, 4)):
        calls = rng.choice(_MUTATIONS)(domain, calls, rng)
    said = [text for text in required_strings(task) if rng.random() < 0.8]
    run = held(domain, task, _grouped(calls, rng), said)
    if rng.random() < 0.1:
        rng.choice(_DAMAGES)(run.messages, rng)
    if rng.random() < 0.05:
        run.termination_reason = rng.choice(list(TerminationReason))
    return run


def held(
    domain: Domain, task: Task, turns: Iterable[list[Made]], said: Iterable[str]
) -> SimulationRun:
    """A conversation in which one side after the other makes the calls of a turn at once."""
    initial = task.initial_state
    history = deepcopy(initial.message_history) if initial and initial.message_history else []
    environment = new_environment(domain)
    environment.set_state(
        initialization_data=initial.initialization_data if initial else None,
        initialization_actions=initial.initialization_actions if initial else None,
        message_history=history,
    )
    messages: list[Message] = [*history]
    if not history:
        messages.append(AssistantMessage(role="assistant", content="Hi! How can I help you today?"))
        messages.append(UserMessage(role="user", content="Do what you know."))
    for number, turn in enumerate(turns):
        side = turn[0].side
        calls = [
            ToolCall(
                id=f"call_{number}_{index}",
                name=made.name,
                arguments=deepcopy(made.arguments),
                requestor=side,
            )
            for index, made in enumerate(turn)
        ]
        kind = AssistantMessage if side == "assistant" else UserMessage
        messages.append(kind(role=side, content=None, tool_calls=calls))
        messages += [environment.get_response(call) for call in calls]
    messages += [AssistantMessage(role="assistant", content=f"It is {text}.") for text in said]
    messages.append(UserMessage(role="user", content="Thanks. ###STOP###"))
    return SimulationRun(
        id="bench",
        task_id=task.id,
        start_time="",
        end_time="",
        duration=0.0,
        termination_reason=TerminationReason.USER_STOP,
        messages=messages,
    )


def reference_calls(task: Task) -> list[Made]:
    """The reference actions of a task, in order."""
    criteria = task.evaluation_criteria
    actions = (criteria.actions or []) if criteria is not None else []
    return [Made(str(a.requestor), a.name, dict(a.arguments)) for a in actions]


@lru_cache
def _all_calls(domain: Domain) -> list[Made]:
    return [
        made for task_id in task_ids(domain) for made in reference_calls(load_task(domain, task_id))
    ]


def _grouped(calls: list[Made], rng: random.Random) -> list[list[Made]]:
    turns: list[list[Made]] = []
    for made in calls:
        if turns and turns[-1][0].side == made.side and rng.random() < 0.2:
            turns[-1].append(made)
        else:
            turns.append([made])
    return turns


def _drop(domain: Domain, calls: list[Made], rng: random.Random) -> list[Made]:
    gone = rng.randrange(len(calls)) if calls else 0
    return calls[:gone] + calls[gone + 1 :]


def _repeat(domain: Domain, calls: list[Made], rng: random.Random) -> list[Made]:
    return _inserted(calls, rng.choice(calls), rng) if calls else calls


def _reorder(domain: Domain, calls: list[Made], rng: random.Random) -> list[Made]:
    return rng.sample(calls, len(calls))


def _alter(domain: Domain, calls: list[Made], rng: random.Random) -> list[Made]:
    if not calls:
        return calls
    at = rng.randrange(len(calls))
    same_tool = [made for made in _all_calls(domain) if made.name == calls[at].name]
    arguments = _altered(calls[at].arguments, rng.choice(same_tool or calls).arguments, rng)
    return [*calls[:at], replace(calls[at], arguments=arguments), *calls[at + 1 :]]


def _borrow(domain: Domain, calls: list[Made], rng: random.Random) -> list[Made]:
    return _inserted(calls, rng.choice(_all_calls(domain)), rng)


def _invent(domain: Domain, calls: list[Made], rng: random.Random) -> list[Made]:
    return _inserted(calls, random_call(domain, rng), rng)


def _fail(domain: Domain, calls: list[Made], rng: random.Random) -> list[Made]:
    made = rng.choice(calls or _all_calls(domain))
    failing = rng.choice(
        [
            replace(made, name=f"{made.name}_please"),
            replace(made, side="user" if made.side == "assistant" else "assistant"),
            replace(made, arguments={}),
            replace(made, arguments=made.arguments | {"reason": "none", "urgent": True}),
        ]
    )
    return _inserted(calls, failing, rng)


def _inserted(calls: list[Made], made: Made, rng: random.Random) -> list[Made]:
    at = rng.randint(0, len(calls))
    return [*calls[:at], made, *calls[at:]]


_MUTATIONS: list[Callable[[Domain, list[Made], random.Random], list[Made]]] = [
    _drop,
    _repeat,
    _reorder,
    _alter,
    _alter,
    _borrow,
    _invent,
    _invent,
    _fail,
]


def _altered(arguments: dict[str, Any], others: dict[str, Any], rng: random.Random) -> Any:
    if not arguments:
        return {"nothing": 1}
    name = rng.choice(list(arguments))
    value = arguments[name]
    if isinstance(value, list) and value and rng.random() < 0.6:
        changed = deepcopy(value)
        at = rng.randrange(len(changed))
        if isinstance(changed[at], dict):
            changed[at] = _altered(changed[at], changed[at], rng)
        else:
            changed[at] = rng.choice(_ODD_VALUES)
        return arguments | {name: changed}
    if rng.random() < 0.3 and name in others:
        return arguments | {name: others[name]}
    if rng.random() < 0.15:
        return {key: value for key, value in arguments.items() if key != name}
    if isinstance(value, bool | int | float) and rng.random() < 0.7:
        return arguments | {name: rng.choice([value + 1, float(value), -value, str(value)])}
    return arguments | {name: rng.choice(_ODD_VALUES)}


_ODD_VALUES: list[Any] = [
    None, True, 0, 1, 1.0, -3, 2.5, float("nan"), "", "1", "nobody_1", "τ\ud83d", "cancelled",
    [], [1, "1"], {}, {"b": 1, "a": [None]},
]  # fmt: skip


def _alter_result(messages: list[Message], rng: random.Random) -> None:
    if results := _results(messages):
        rng.choice(results).content = rng.choice(["", "{}", "Error: no", "null", "1"])


def _lose_result(messages: list[Message], rng: random.Random) -> None:
    if results := _results(messages):
        messages.remove(rng.choice(results))


def _rename_result(messages: list[Message], rng: random.Random) -> None:
    if results := _results(messages):
        rng.choice(results).id = "call_of_another"


def _invent_result(messages: list[Message], rng: random.Random) -> None:
    stray = ToolMessage(id="call_0_0", role="tool", content="{}")
    messages.insert(rng.randint(0, len(messages)), stray)


def _results(messages: list[Message]) -> list[ToolMessage]:
    return [message for message in messages if isinstance(message, ToolMessage)]


_DAMAGES: list[Callable[[list[Message], random.Random], None]] = [
    _alter_result,
    _lose_result,
    _rename_result,
    _invent_result,
]


@dataclass(frozen=True)
class Named:
    """A conversation and what it is: ``do-nothing``, ``reference`` or ``mutated``."""

    kind: str
    task: Task
    run: SimulationRun
