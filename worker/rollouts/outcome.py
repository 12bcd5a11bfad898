"""How a rollout ended, decided in one place.

What the policy did is judged; what it did not do is not, and says why. The words are those of
``app.contract.Outcome``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tau2.data_model.simulation import TerminationReason
from tau2.user.user_simulator import OUT_OF_SCOPE

from app.contract import Outcome
from worker.rollouts.reward import EvaluatorError
from worker.rollouts.utterances import repair
from worker.rollouts.window import PromptTooLong

CAUSE_CHARACTERS = 500
"""Longest cause that is reported; what a server answers can be a whole page."""


class Side(StrEnum):
    """Who was at work when something failed."""

    ASSISTANT = "assistant"
    USER = "user"
    ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Ending:
    """What is known once a conversation is over, or has failed.

    Attributes:
        termination: τ²'s word, where the conversation came to an end.
        users_last_words: the last message, where the user said it.
        failed: who was at work when ``error`` was raised.
        deadline: the seconds that the rollout had, where they ran out.
        evaluator_error: what τ²'s evaluator raised on the conversation.
        secrets: the keys of the chat clients; a server that refuses one may quote it.
    """

    termination: TerminationReason | None = None
    users_last_words: str = ""
    failed: Side | None = None
    error: Exception | None = None
    deadline: float | None = None
    evaluator_error: EvaluatorError | None = None
    secrets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """An outcome and, where it is not simply completed, its cause."""

    outcome: Outcome
    cause: str | None = None


_LIMITS = {
    TerminationReason.MAX_STEPS: Verdict(
        Outcome.MAX_STEPS, "the conversation reached its most steps"
    ),
    TerminationReason.TOO_MANY_ERRORS: Verdict(
        Outcome.TOO_MANY_ERRORS, "tool calls failed as often as is allowed"
    ),
    TerminationReason.AGENT_ERROR: Verdict(
        Outcome.AGENT_ERROR, "the assistant sent an empty message"
    ),
    TerminationReason.USER_ERROR: Verdict(
        Outcome.USER_ERROR, "the user simulator sent an empty message"
    ),
}


def decide(ending: Ending) -> Verdict:
    """The one outcome of a rollout, and its cause: short, and without a key in it."""
    verdict = _verdict(ending)
    if verdict.cause is None:
        return verdict
    cause = repair(verdict.cause)
    for secret in ending.secrets:
        cause = cause.replace(secret, "…")
    if len(cause) > CAUSE_CHARACTERS:
        cause = cause[: CAUSE_CHARACTERS - 1] + "…"
    return Verdict(verdict.outcome, cause)


def _verdict(ending: Ending) -> Verdict:
    if ending.deadline is not None:
        return Verdict(Outcome.TIMEOUT, f"not done after {ending.deadline:g} s")
    if ending.error is not None:
        return _failure(ending.failed, ending.error)
    if ending.evaluator_error is not None:
        if ending.evaluator_error.by_state:
            cause = f"an assertion on the final state raised: {ending.evaluator_error}"
            return Verdict(Outcome.COMPLETED, cause)
        return Verdict(Outcome.ENVIRONMENT_ERROR, f"evaluator: {ending.evaluator_error}")
    if OUT_OF_SCOPE in ending.users_last_words:
        # τ² calls this a stop like any other; but it is the simulator that left its script.
        return Verdict(Outcome.OUT_OF_SCOPE, f"the user simulator said {OUT_OF_SCOPE}")
    if ending.termination in (TerminationReason.USER_STOP, TerminationReason.AGENT_STOP):
        return Verdict(Outcome.COMPLETED)
    if ending.termination in _LIMITS:
        return _LIMITS[ending.termination]
    return Verdict(Outcome.ENVIRONMENT_ERROR, "the conversation ended without a reason")


def _failure(failed: Side | None, error: Exception) -> Verdict:
    what = _describe(error)
    if any(isinstance(link, PromptTooLong) for link in _chain(error)):
        return Verdict(Outcome.CONTEXT_LIMIT, what)
    if failed is Side.ASSISTANT and _is_context_limit(error):
        return Verdict(Outcome.CONTEXT_LIMIT, f"assistant: {what}")
    if failed is Side.ASSISTANT:
        return Verdict(Outcome.INFRASTRUCTURE_ERROR, f"assistant: {what}")
    if failed is Side.USER:
        return Verdict(Outcome.USER_ERROR, f"user simulator: {what}")
    return Verdict(Outcome.ENVIRONMENT_ERROR, f"environment: {what}")


_CONTEXT_LIMIT = re.compile(
    r"context[ _-]?(length|window|size)|ContextWindowExceeded|maximum model length"
    r"|max_model_len|prompt is too long|too many (input )?tokens",
    re.IGNORECASE,
)


def _is_context_limit(error: Exception) -> bool:
    """Whether a server refused the prompt as too long: HTTP 400, and a text that says so."""
    return any(
        getattr(link, "status_code", None) == 400 and _CONTEXT_LIMIT.search(str(link))
        for link in _chain(error)
    )


def _describe(error: Exception) -> str:
    """The error and what lies under it: a connection error says what failed only in its cause."""
    parts: list[str] = []
    for link in _chain(error):
        text = f"{type(link).__name__}: {link}" if str(link) else type(link).__name__
        if not any(str(link) and str(link) in part for part in parts):
            parts.append(text)
    return "; ".join(parts)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
