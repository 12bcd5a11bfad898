"""One rollout: a conversation as an agent framework workflow, and its judgement.

The workflow is what agentlightning's tracer understands: a model call counts as the policy's turn
only inside an ``AgentExecutor`` whose id it is told. The agents get declarations of their tools
and the framework's own function loop stays off, so that every message comes back here and τ²'s
``Environment`` answers the calls, in τ²'s order (``dialogue.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from agent_framework import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    Executor,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

from app.contract import (
    JUDGED,
    Domain,
    Outcome,
    RolloutDoc,
    RolloutMode,
    SecondsDoc,
    TokensDoc,
)
from worker.rollouts.agents import ASSISTANT_AGENT, USER_AGENT, ChatClient, keys_of, speaker
from worker.rollouts.dialogue import Dialogue, Party
from worker.rollouts.environments import new_environment, surface, user_prompt
from worker.rollouts.outcome import Ending, Side, Verdict, decide
from worker.rollouts.reward import EvaluatorError, Judgement, judge
from worker.rollouts.tasks import load_task
from worker.rollouts.utterances import as_request, heard
from worker.rollouts.window import PromptCounter, TokenCounter, Window

__all__ = ["ASSISTANT_AGENT", "USER_AGENT", "RolloutSpec", "run_rollout"]

ORCHESTRATOR = "orchestrator"

_AGENTS = {Party.ASSISTANT: ASSISTANT_AGENT, Party.USER: USER_AGENT}


@dataclass(frozen=True)
class RolloutSpec:
    """What a rollout is asked to be.

    ``max_steps`` and ``max_errors`` are τ²'s limits; ``window_tokens`` and ``max_prompt_tokens``
    those of the assistant's ``Window``.
    """

    id: str
    domain: Domain
    task_id: str
    mode: RolloutMode
    max_steps: int
    max_errors: int
    window_tokens: int
    timeout_seconds: float
    max_prompt_tokens: int | None = None
    run_id: str | None = None
    attempt: int | None = None
    step: int | None = None


async def run_rollout(
    spec: RolloutSpec,
    assistant: ChatClient,
    user: ChatClient,
    *,
    assistant_options: dict[str, Any] | None = None,
    count_tokens: TokenCounter | None = None,
    count_prompt: PromptCounter | None = None,
    on_failure: Callable[[Exception], None] | None = None,
) -> RolloutDoc:
    """Holds one conversation and judges it. Raises nothing but ``CancelledError``.

    Args:
        spec: the task and the limits.
        assistant: the policy's chat client.
        user: the user simulator's, made for this task (``users.user_client``).
        assistant_options: chat options of every request to the assistant (temperature, seed, …).
        count_tokens: the policy's tokenizer, for its window; None estimates without one.
        count_prompt: the policy's chat template and tokenizer, for its limit on the prompt.
        on_failure: told of the error that ended the conversation, where one did.
    """
    rollout = _Rollout(spec)
    counters = _Counters(count_tokens, count_prompt)
    started = time.monotonic()
    try:
        async with asyncio.timeout(spec.timeout_seconds) as deadline:
            try:
                await rollout.converse(assistant, user, assistant_options or {}, counters)
            except Exception as error:  # noqa: BLE001 all but a cancel becomes an outcome
                if on_failure is not None:
                    on_failure(error)
                rollout.failed(error, secrets=keys_of(assistant) | keys_of(user))
    except TimeoutError:
        rollout.ending = Ending(deadline=spec.timeout_seconds)
    if deadline.expired():
        rollout.ending = Ending(deadline=spec.timeout_seconds)
    verdict, judgement = rollout.verdict()
    rollout.seconds.total = time.monotonic() - started
    return rollout.document(verdict, judgement)


@dataclass(frozen=True)
class _Counters:
    """How the policy's tokens are counted."""

    text: TokenCounter | None
    prompt: PromptCounter | None


class _Rollout:
    """The state of one rollout, and the document that comes of it."""

    def __init__(self, spec: RolloutSpec) -> None:
        self.spec = spec
        self.ending = Ending()
        self.seconds = SecondsDoc()
        self.tokens = TokensDoc()
        self.turns = 0
        self.at_work = Side.ENVIRONMENT
        self._dialogue: Dialogue | None = None

    async def converse(
        self,
        assistant: ChatClient,
        user: ChatClient,
        assistant_options: dict[str, Any],
        counters: _Counters,
    ) -> None:
        with self.timed(Side.ENVIRONMENT):
            task = load_task(self.spec.domain, self.spec.task_id)
            shown = surface(self.spec.domain)
            dialogue = self._dialogue = Dialogue(
                task,
                new_environment(self.spec.domain),
                max_steps=self.spec.max_steps,
                max_errors=self.spec.max_errors,
            )
            window = Window(
                self.spec.window_tokens,
                shown.assistant_prompt,
                counters.text,
                tools=shown.assistant_tools,
                max_prompt_tokens=self.spec.max_prompt_tokens,
                count_prompt=counters.prompt,
            )
        orchestrator = _Orchestrator(self, dialogue, window)
        agents = [
            speaker(
                ASSISTANT_AGENT,
                assistant,
                shown.assistant_prompt,
                shown.assistant_tools,
                assistant_options,
            ),
            speaker(USER_AGENT, user, user_prompt(self.spec.domain, task), shown.user_tools, {}),
        ]
        # A round is one delivery of a message: two for each message that a model sends.
        builder = WorkflowBuilder(
            max_iterations=2 * self.spec.max_steps + 10,
            name=self.spec.id,
            start_executor=orchestrator,
        )
        for agent in agents:
            builder.add_edge(orchestrator, agent).add_edge(agent, orchestrator)
        await builder.build().run(_Begin())
        self.ending = Ending(
            termination=dialogue.termination,
            users_last_words=dialogue.users_last_words(),
        )

    @contextmanager
    def timed(self, side: Side) -> Iterator[None]:
        """Books wall clock on a side, and remembers who was at work should it fail."""
        self.at_work = side
        started = time.monotonic()
        try:
            yield
        finally:
            self.book(side, time.monotonic() - started)

    def book(self, side: Side, seconds: float) -> None:
        setattr(self.seconds, side.value, getattr(self.seconds, side.value) + seconds)

    def failed(self, error: Exception, secrets: frozenset[str]) -> None:
        self.ending = Ending(failed=self.at_work, error=error, secrets=secrets)

    def verdict(self) -> tuple[Verdict, Judgement]:
        """The outcome, and τ²'s judgement where the policy is to be judged."""
        verdict = decide(self.ending)
        if verdict.outcome is not Outcome.COMPLETED or self._dialogue is None:
            return verdict, Judgement()
        termination = self.ending.termination
        started = time.monotonic()
        try:
            task = load_task(self.spec.domain, self.spec.task_id)
            return verdict, judge(self.spec.domain, task, self._dialogue.trajectory(), termination)
        except EvaluatorError as error:
            return decide(replace(self.ending, evaluator_error=error)), Judgement()
        finally:
            self.seconds.evaluation = time.monotonic() - started

    def document(self, verdict: Verdict, judgement: Judgement) -> RolloutDoc:
        dialogue = self._dialogue
        termination = self.ending.termination
        return RolloutDoc(
            id=self.spec.id,
            run_id=self.spec.run_id,
            attempt=self.spec.attempt,
            step=self.spec.step,
            mode=self.spec.mode,
            domain=self.spec.domain,
            task_id=self.spec.task_id,
            outcome=verdict.outcome,
            termination=termination.value if termination is not None else None,
            cause=verdict.cause,
            reward=judgement.reward if verdict.outcome in JUDGED else None,
            reward_breakdown=judgement.breakdown,
            checks=judgement.checks,
            turns=self.turns,
            tokens=self.tokens,
            seconds=self.seconds,
            messages=[entry.doc for entry in dialogue.entries] if dialogue else [],
            text_repaired=dialogue.repaired if dialogue else False,
        )


class _Begin:
    """The workflow's first message."""


class _Orchestrator(Executor):
    """Passes each message on to whom τ²'s order says, and keeps the books."""

    def __init__(self, rollout: _Rollout, dialogue: Dialogue, window: Window) -> None:
        super().__init__(id=ORCHESTRATOR)
        self._rollout = rollout
        self._dialogue = dialogue
        self._window = window
        self._asked_at = 0.0

    @handler
    async def begin(self, message: _Begin, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Brings the environment to the task's initial state and asks the first speaker."""
        with self._rollout.timed(Side.ENVIRONMENT):
            party = self._dialogue.begin()
        await self._ask(party, ctx)

    @handler
    async def hear(
        self, response: AgentExecutorResponse, ctx: WorkflowContext[AgentExecutorRequest]
    ) -> None:
        """Takes a model's message, lets the environment answer its calls, asks the next speaker."""
        party = Party.ASSISTANT if response.executor_id == ASSISTANT_AGENT else Party.USER
        self._rollout.book(Side(party.value), time.monotonic() - self._asked_at)
        self._count(party, response.agent_response.usage_details or {})
        if not response.agent_response.messages:
            raise ValueError("the server's answer holds no message")
        utterance = heard(response.agent_response.messages, self._dialogue.calls)
        with self._rollout.timed(Side.ENVIRONMENT):
            following = self._dialogue.said(party, utterance)
        await self._ask(following, ctx)

    async def _ask(self, party: Party | None, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        if party is None:
            return
        docs = self._dialogue.seen_by(party)
        if party is Party.ASSISTANT:
            self._rollout.turns += 1
            docs = self._window.fit(docs)
        request = AgentExecutorRequest(
            messages=[as_request(doc, speaker=party.value) for doc in docs]
        )
        self._rollout.at_work = Side(party.value)
        self._asked_at = time.monotonic()
        await ctx.send_message(request, target_id=_AGENTS[party])

    def _count(self, party: Party, usage: Mapping[str, Any]) -> None:
        tokens = self._rollout.tokens
        prompt = int(usage.get("input_token_count") or 0)
        completion = int(usage.get("output_token_count") or 0)
        if party is Party.ASSISTANT:
            tokens.assistant_prompt += prompt
            tokens.assistant_completion += completion
        else:
            tokens.user_prompt += prompt
            tokens.user_completion += completion
