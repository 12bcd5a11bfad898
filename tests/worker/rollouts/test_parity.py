"""A rollout says, does and earns what τ²'s own Orchestrator makes of the same replies."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from tau2.agent.base import LocalAgent
from tau2.data_model.message import AssistantMessage, ToolCall, ToolMessage, UserMessage
from tau2.domains.telecom.user_tools import TelecomUserTools
from tau2.environment.environment import Environment
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.orchestrator.orchestrator import Orchestrator, Role
from tau2.registry import registry
from tau2.user.base import OUT_OF_SCOPE, BaseUser

from app.contract import Domain, MessageDoc, RolloutDoc
from tests.worker.rollouts.fakes import FakeClient, call, converse, spec
from worker.rollouts import conversation
from worker.rollouts.environments import new_environment
from worker.rollouts.shared_data import own_copy
from worker.rollouts.tasks import load_task, task_ids

# One reply: text and tool calls (name, arguments, id), as both sides are told it.
Script = list[tuple[str | None, list[tuple[str, dict[str, Any], str]]]]


class ReplayedAgent(LocalAgent[Any]):
    """τ²'s side of the comparison: an agent that says what the script says."""

    def __init__(self, script: Script) -> None:
        super().__init__(tools=[], domain_policy="")
        self.script = list(script)

    def get_init_state(self, message_history: Any = None) -> None:
        return None

    def generate_next_message(self, message: Any, state: Any) -> tuple[AssistantMessage, None]:
        text, made = self.script.pop(0)
        tool_calls = [ToolCall(id=i, name=n, arguments=a) for n, a, i in made] or None
        return AssistantMessage(role="assistant", content=text, tool_calls=tool_calls, cost=0), None


class ReplayedUser(BaseUser):
    """τ²'s side of the comparison: a user that says what the script says."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = list(script)

    def get_init_state(self, message_history: Any = None) -> None:  # type: ignore[override]
        return None

    def is_stop(self, message: UserMessage) -> bool:  # type: ignore[override]
        raise AssertionError("the orchestrator asks UserSimulator")

    def generate_next_message(  # type: ignore[override]
        self, message: Any, state: Any
    ) -> tuple[UserMessage, None]:
        text, made = self.script.pop(0)
        tool_calls = [
            ToolCall(id=i, name=n, arguments=a, requestor="user") for n, a, i in made
        ] or None
        return UserMessage(role="user", content=text, tool_calls=tool_calls, cost=0), None


Hashes = tuple[str | None, str | None]
"""τ²'s hashes of the assistant's and of the user's database."""

UNBROKEN_VPN = own_copy(TelecomUserTools.default_vpn_details)


def hashes(environment: Environment) -> Hashes:
    return environment.get_db_hash(), environment.get_user_db_hash()


@dataclass(frozen=True)
class Expected:
    """What τ² makes of two scripts."""

    messages: list[Any]
    termination: str
    reward: float | None
    hashes: Hashes
    raised: str | None = None


def replies(script: Script) -> list[Any]:
    return [[*([text] if text else []), *(call(*made) for made in calls)] for text, calls in script]


def by_tau2(
    domain: Domain, task_id: str, agent: Script, user: Script, max_steps: int, max_errors: int
) -> Expected:
    task = deepcopy(load_task(domain, task_id))
    # A VPN that an earlier conversation broke stays broken in τ²'s process.
    TelecomUserTools.default_vpn_details = own_copy(UNBROKEN_VPN)
    environment = registry.get_env_constructor(domain.value)()
    orchestrator = Orchestrator(
        domain=domain.value,
        agent=ReplayedAgent(agent),
        user=ReplayedUser(user),
        environment=environment,
        task=task,
        max_steps=max_steps,
        max_errors=max_errors,
    )
    try:
        run = orchestrator.run()
    except ValueError as raised:  # τ² has no judgement of an empty message
        if "must have either content" not in str(raised):
            raise
        said = [tau2_row(m) for m in orchestrator.trajectory]
        if orchestrator.to_role is Role.USER:
            return Expected(said, "user_error", None, hashes(environment))
        return Expected(said, "agent_error", 0.0, hashes(environment))
    messages, termination = [tau2_row(m) for m in run.messages], run.termination_reason.value
    end = hashes(environment)
    if messages[-1][:2] == ("user", OUT_OF_SCOPE):  # τ² would judge it
        return Expected(messages, termination, None, end)
    TelecomUserTools.default_vpn_details = own_copy(UNBROKEN_VPN)
    try:
        info = evaluate_simulation(run, task, EvaluationType.ALL, False, domain.value)
    except ValueError as raised:  # mock's does, on a task that the policy never created
        return Expected(messages, termination, 0.0, end, str(raised))
    return Expected(messages, termination, info.reward, end)


def tau2_row(message: Any) -> Any:
    if isinstance(message, ToolMessage):
        return ("tool", message.content, message.id, message.requestor, message.error)
    made = [(c.id, c.name, c.arguments) for c in message.tool_calls or []]
    return (message.role, message.content, made)


def our_row(doc: MessageDoc) -> Any:
    if doc.role == "tool":
        return ("tool", doc.content, doc.tool_call_id, doc.requestor, doc.error)
    made = [(c.id, c.name, c.arguments) for c in doc.tool_calls or []]
    return (doc.role, doc.content, made)


def ours(
    domain: Domain, task_id: str, agent: Script, user: Script, max_steps: int, max_errors: int
) -> tuple[RolloutDoc, Hashes]:
    made: list[Environment] = []

    def kept(of: Domain) -> Environment:
        made.append(new_environment(of))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversation, "new_environment", kept)
        document = converse(
            FakeClient(*replies(agent)),
            FakeClient(*replies(user)),
            spec(task_id, domain, max_steps=max_steps, max_errors=max_errors),
        )
    (environment,) = made
    return document, hashes(environment)


class Scripts:
    """Random replies in a domain: right calls, wrong ones, unknown ones, several, mixed."""

    def __init__(self, domain: Domain, task_id: str, rng: random.Random) -> None:
        self.rng = rng
        criteria = load_task(domain, task_id).evaluation_criteria
        actions = (criteria.actions if criteria else None) or []
        self.known = {
            side: [(a.name, a.arguments) for a in actions if a.requestor == side]
            or [("get_users", {})]
            for side in ("assistant", "user")
        }
        self.number = 0

    def one_call(self, side: str) -> tuple[str, dict[str, Any], str]:
        self.number += 1
        name, arguments = self.rng.choice(self.known[side])
        kind = self.rng.random()
        if kind < 0.15:
            name = "no_such_tool"
        elif kind < 0.3:
            arguments = {**arguments, "surplus": 1}
        elif kind < 0.4:
            arguments = {}
        return name, arguments, f"{side}-{self.number}"

    def script(self, side: str, length: int) -> Script:
        return [self.reply(side) for _ in range(length)]

    def reply(self, side: str) -> Any:
        kind = self.rng.random()
        calling = 0.6 if side == "assistant" else 0.2
        if kind < calling:
            some = [self.one_call(side) for _ in range(self.rng.choice([1, 1, 1, 2, 3]))]
            text = self.rng.choice(["Let me see.", "###STOP###", *[None] * 8])
            return (text, some)
        if side == "user" and self.rng.random() < 0.25:
            return (self.rng.choice(["Bye ###STOP###", "###TRANSFER###", OUT_OF_SCOPE]), [])
        if self.rng.random() < 0.05:
            return (self.rng.choice([None, " \n"]), [])
        return (self.rng.choice(["Yes.", "What is your id?", "Done, 12,345."]), [])


CASES = [
    *(pytest.param(Domain.MOCK, task_id, 12, id=task_id) for task_id in task_ids(Domain.MOCK)),
    pytest.param(Domain.TELECOM, None, 20, id="telecom"),
    pytest.param(Domain.AIRLINE, None, 4, id="airline"),
    pytest.param(Domain.RETAIL, None, 6, id="retail"),
]


@pytest.mark.parametrize(("domain", "task_id", "sequences"), CASES)
def test_the_same_replies_give_what_the_benchmark_gives(
    domain: Domain, task_id: str | None, sequences: int
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(sequences):
        chosen = task_id or rng.choice(task_ids(domain))
        scripts = Scripts(domain, chosen, rng)
        max_steps, max_errors = rng.randint(1, 20), rng.randint(1, 5)
        agent, user = scripts.script("assistant", 30), scripts.script("user", 30)
        given = (domain, chosen, agent, user, max_steps, max_errors)
        document, end = ours(*given)
        expected = by_tau2(*given)
        said = [our_row(doc) for doc in document.messages]
        if document.termination in ("agent_error", "user_error"):
            said.pop()  # the empty message, which τ² does not record
        assert said == expected.messages
        assert document.termination == expected.termination
        assert document.reward == expected.reward
        assert end == expected.hashes
        if expected.raised:
            assert (document.outcome, document.reward) == ("completed", 0.0)
            assert expected.raised in (document.cause or "")
