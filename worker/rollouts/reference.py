"""A task's reference actions, cut into the runs of each side.

In telecom the user has tools of its own, and the order across both sides matters. So the reference
assistant makes its calls up to the user's next ones, then asks for these with ``PERFORM``.
"""

from __future__ import annotations

import json
from itertools import groupby

from agent_framework import Content
from tau2.data_model.tasks import Action, Task

PERFORM = "Please do your next steps now."
"""What the reference assistant says when it is the user's turn to act."""


def actions_by_side(task: Task) -> list[tuple[str, list[Content]]]:
    """Runs of tool calls in the reference's order, each with who makes it."""
    criteria = task.evaluation_criteria
    actions: list[Action] = list(criteria.actions or []) if criteria is not None else []
    calls = [(str(action.requestor), _call(action)) for action in actions]
    return [
        (side, [call for _, call in run]) for side, run in groupby(calls, key=lambda pair: pair[0])
    ]


def user_runs(task: Task) -> list[list[Content]]:
    """The user's runs, in order."""
    return [run for side, run in actions_by_side(task) if side == "user"]


def required_strings(task: Task) -> list[str]:
    """What the assistant has to say."""
    criteria = task.evaluation_criteria
    return list(criteria.communicate_info or []) if criteria is not None else []


def _call(action: Action) -> Content:
    return Content.from_function_call(
        call_id=action.action_id, name=action.name, arguments=json.dumps(action.arguments)
    )
