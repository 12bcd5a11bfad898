"""Right and wrong answers to the mock tasks, recorded in the real environment.

The warm start imitates these conversations, so it has to see every turn the agent will see:
each one is held by the rollout code itself, over the chat-completions protocol, with the reply of
the policy taken from here. What is recorded is exactly what the policy server will be sent.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx
from agent_framework.openai import OpenAIChatCompletionClient
from openai import AsyncOpenAI

from app.contract import Domain, RolloutDoc, RolloutMode, ScriptedUser
from worker.cpu.chat import parse_reply
from worker.rollouts.conversation import RolloutSpec, run_rollout
from worker.rollouts.tasks import load_task
from worker.rollouts.users import user_client


@dataclass(frozen=True)
class Answer:
    """One way to answer a task: what the policy generates, turn by turn.

    ``share`` is its part among the answers of its kind (right or wrong).
    """

    right: bool
    share: float
    turns: tuple[str, ...]


@dataclass(frozen=True)
class RecordedTurn:
    """A request as the policy server gets it, and the reply to learn."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    reply: str


@dataclass(frozen=True)
class Demonstration:
    """A recorded conversation with its weight in the mix and what τ² said of it."""

    task_id: str
    answer: Answer
    turns: tuple[RecordedTurn, ...]
    rollout: RolloutDoc


def _call(name: str, **arguments: str) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


_CREATE = _call("create_task", user_id="user_1", title="Important Meeting")
_CREATE_WRONG = _call("create_task", user_id="user_1", title="Meeting")
_DONE_1 = _call("update_task_status", task_id="task_1", status="completed")
_DONE_2 = _call("update_task_status", task_id="task_2", status="completed")
_NOT_DONE_1 = _call("update_task_status", task_id="task_1", status="pending")
_TRANSFER = _call("transfer_to_human_agents", summary="The user wants to delete all tasks.")
_CREATED = "I have created the task."
_UPDATED = "I have updated the task."
_REFUSED = "I am sorry, I cannot do that."
# One mock task requires that these two sentences are said, word for word.
_ACKNOWLEDGED = (
    "The agent acknowledged the previous context. "
    "The agent confirmed the task status was updated successfully."
)

_CREATING = (
    Answer(True, 1.0, (_CREATE, _CREATED)),
    Answer(False, 0.7, (_CREATE_WRONG, _CREATED)),
    Answer(False, 0.3, (_REFUSED,)),
)
_UPDATING_FIRST = (
    Answer(True, 1.0, (_DONE_1, _UPDATED)),
    Answer(False, 0.7, (_NOT_DONE_1, _UPDATED)),
    Answer(False, 0.3, (_REFUSED,)),
)
_UPDATING_SECOND = (
    Answer(True, 1.0, (_DONE_2, _ACKNOWLEDGED)),
    Answer(False, 0.7, (_DONE_1, _ACKNOWLEDGED)),
    Answer(False, 0.3, (_REFUSED,)),
)
_DELETING = (
    Answer(True, 1.0, (_TRANSFER, "I have transferred you to a human agent.")),
    Answer(False, 0.7, ("I have deleted all your tasks.",)),
    Answer(False, 0.3, (_REFUSED,)),
)

ANSWERS: dict[str, tuple[Answer, ...]] = {
    "create_task_1": _CREATING,
    "create_task_1_with_env_assertions": _CREATING,
    "update_task_1": _UPDATING_FIRST,
    "update_task_with_message_history": _UPDATING_SECOND,
    "update_task_with_initialization_data": _UPDATING_SECOND,
    "update_task_with_initialization_actions": _UPDATING_SECOND,
    "update_task_with_history_and_env_assertions": _UPDATING_SECOND,
    "impossible_task_1": _DELETING,
}
"""The eight mock tasks that do-nothing fails. In each mix one wrong answer is likelier than the
right one, so a greedy policy starts with none of them solved, and sampling finds the right one."""


async def record(task_id: str, answer: Answer) -> Demonstration:
    """Holds the conversation in which the policy gives ``answer``.

    Raises:
        RuntimeError: the conversation asked for more turns than the answer has, or for fewer.
    """
    turns: list[RecordedTurn] = []

    def reply(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if len(turns) == len(answer.turns):
            return httpx.Response(400, json={"error": {"message": "the answer has no more turns"}})
        text = answer.turns[len(turns)]
        turns.append(RecordedTurn(body["messages"], body.get("tools") or [], text))
        return httpx.Response(200, json=_completion(text))

    # openai 3 is typed for its own fork of httpx and takes this one as well, as openai 2 does.
    http: Any = httpx.AsyncClient(transport=httpx.MockTransport(reply))
    async with AsyncOpenAI(api_key="none", base_url="http://policy/v1", http_client=http) as openai:
        client = OpenAIChatCompletionClient(model="policy", async_client=openai)
        spec = RolloutSpec(
            id=f"ro_demonstration-{task_id}",
            domain=Domain.MOCK,
            task_id=task_id,
            mode=RolloutMode.DEBUG,
            max_steps=30,
            max_errors=10,
            window_tokens=100_000,
            timeout_seconds=60,
        )
        user = user_client(ScriptedUser(), load_task(Domain.MOCK, task_id))
        rollout = await run_rollout(spec, client, user)
    if len(turns) != len(answer.turns) or rollout.reward is None:
        raise RuntimeError(
            f"{task_id}: {len(turns)} of {len(answer.turns)} turns were used, "
            f"outcome {rollout.outcome}: {rollout.cause}"
        )
    return Demonstration(task_id, answer, tuple(turns), rollout)


async def record_all(task_ids: list[str]) -> list[Demonstration]:
    """Demonstrations of every answer of ``task_ids``; tasks without answers are passed over."""
    return [
        await record(task_id, answer) for task_id in task_ids for answer in ANSWERS.get(task_id, ())
    ]


def _completion(text: str) -> dict[str, Any]:
    message = parse_reply(text)
    reason = "tool_calls" if message["tool_calls"] else "stop"
    return {
        "id": f"chatcmpl-{time.monotonic_ns()}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
