"""τ²'s own judgement of a finished conversation."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from tau2.data_model.message import Message
from tau2.data_model.simulation import RewardInfo, SimulationRun, TerminationReason
from tau2.data_model.tasks import EnvAssertion, Task
from tau2.utils.utils import get_now

from app.contract import CheckDoc, Domain
from worker.rollouts.evaluation import evaluate_simulation


class EvaluatorError(Exception):
    """τ²'s evaluator raised.

    Attributes:
        by_state: an assertion on the final state raised (mock's ``assert_task_status`` does where
            the task was never created); so the policy brought it about, and it is no fault.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        frames = traceback.extract_tb(error.__traceback__)
        self.by_state = any(frame.name == "run_env_assertion" for frame in frames)


@dataclass(frozen=True)
class Judgement:
    """A reward and what it is made of. ``breakdown`` has the parts of the task's reward basis."""

    reward: float = 0.0
    breakdown: dict[str, float] = field(default_factory=dict)
    checks: list[CheckDoc] = field(default_factory=list)


def judge(
    domain: Domain, task: Task, messages: Sequence[Message], termination: TerminationReason
) -> Judgement:
    """τ²'s reward for a conversation; 0 without checks where nobody stopped it.

    Raises:
        EvaluatorError: τ²'s evaluator raised.
    """
    try:
        simulation = SimulationRun(
            id=str(uuid.uuid4()),
            task_id=task.id,
            start_time=get_now(),
            end_time=get_now(),
            duration=0.0,
            termination_reason=termination,
            messages=list(messages),
        )
        info = evaluate_simulation(domain=domain, task=task, simulation=simulation)
    except Exception as error:
        raise EvaluatorError(error) from error
    return Judgement(
        reward=float(info.reward),
        breakdown={kind.value: float(part) for kind, part in (info.reward_breakdown or {}).items()},
        checks=_checks(info),
    )


def _checks(info: RewardInfo) -> list[CheckDoc]:
    checks: list[CheckDoc] = []
    if info.db_check is not None:
        what = "the database is as the reference actions leave it"
        checks.append(CheckDoc(kind="db", what=what, passed=info.db_check.db_match))
    checks += [
        CheckDoc(kind="communicate", what=check.info, passed=check.met)
        for check in info.communicate_checks or []
    ]
    checks += [
        CheckDoc(kind="action", what=check.action.get_func_format(), passed=check.action_match)
        for check in info.action_checks or []
    ]
    checks += [
        CheckDoc(kind="env_assertion", what=_assertion(check.env_assertion), passed=check.met)
        for check in info.env_assertions or []
    ]
    checks += [
        CheckDoc(kind="nl_assertion", what=check.nl_assertion, passed=check.met)
        for check in info.nl_assertions or []
    ]
    return checks


def _assertion(wanted: EnvAssertion) -> str:
    arguments = ", ".join(f"{name}={value}" for name, value in wanted.arguments.items())
    return f"{wanted.func_name}({arguments}) is {wanted.assert_value}"
