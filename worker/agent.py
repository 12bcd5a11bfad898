"""The agent that is trained: one τ² conversation for each rollout."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from agent_framework.openai import OpenAIChatCompletionClient
from agentlightning import LitAgent
from agentlightning.types import Attempt, AttemptedRollout, NamedResources, ProxyLLM
from openai import AsyncOpenAI

from app.contract import JUDGED, RETRIED, Domain, Engine, RolloutDoc, RolloutMode, RunConfig
from worker.reporter import Reporter
from worker.retries import retry_wait
from worker.rollouts.conversation import ASSISTANT_AGENT, RolloutSpec, run_rollout
from worker.rollouts.endpoints import close, retry_after_seconds
from worker.rollouts.shaping import partial_reward
from worker.rollouts.tasks import load_task
from worker.rollouts.users import user_client
from worker.tokenizer import PolicyTokenizer

TRAINED_AGENT = ASSISTANT_AGENT
"""Whose turns become training data; without it the user simulator's would too."""


CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


class RolloutNotJudged(Exception):
    """The rollout says nothing about the policy; the store tries it again."""


class Tau2Agent(LitAgent[dict[str, Any]]):
    """Holds the conversation with the model that is being trained, and reports it."""

    def __init__(
        self,
        config: RunConfig,
        *,
        run_id: str,
        attempt: int,
        reporter: Reporter,
        tokenizer_path: str,
        api_key: str,
    ) -> None:
        super().__init__()
        self.config = config
        self.run_id = run_id
        self.attempt = attempt
        self.reporter = reporter
        self._api_key = api_key
        self._tokenizer = PolicyTokenizer(
            tokenizer_path, parsed_arguments=config.engine is not Engine.CPU
        )
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        # Made in the runner's own process, after the fork.
        self._openai: AsyncOpenAI | None = None

    async def rollout_async(
        self, task: dict[str, Any], resources: NamedResources, rollout: AttemptedRollout
    ) -> float:
        """The reward that the trainer gets.

        Raises:
            RolloutNotJudged: it ended for a reason that is not the policy's. The store tries it
                again at once, so it is raised only when it is time to.
        """
        failures: list[Exception] = []
        document = await self._converse(task["id"], resources, rollout, failures.append)
        if document.outcome in JUDGED:
            if self.config.reward.shape == "partial":
                document.shaped_reward = partial_reward(document)
            self.reporter.rollout(document)
            return self._training_reward(document)
        if rollout.attempt.sequence_id >= self.config.rollout.max_attempts:
            self.reporter.rollout(document)
        else:
            await self._back_off(document, rollout.attempt, failures)
        raise RolloutNotJudged(f"{document.outcome}: {document.cause}")

    async def _back_off(
        self, document: RolloutDoc, tried: Attempt, failures: list[Exception]
    ) -> None:
        """Reports a try that came to nothing, and waits until the next may begin."""
        asked = [seconds for error in failures if (seconds := retry_after_seconds(error))]
        wait = retry_wait(tried.sequence_id, document.id, max(asked, default=None))
        self.reporter.event(
            RETRIED,
            {
                "rollout": document.id,
                "task": document.task_id,
                "outcome": document.outcome,
                "cause": document.cause,
                "tokens": document.tokens.model_dump(),
                "tries": tried.sequence_id,
                "wait_seconds": round(wait, 3),
            },
        )
        await self._sleep(wait)

    async def _converse(
        self,
        task_id: str,
        resources: NamedResources,
        rollout: AttemptedRollout,
        on_failure: Callable[[Exception], None],
    ) -> RolloutDoc:
        config = self.config
        metadata = rollout.metadata or {}
        llm = resources["main_llm"]
        if not isinstance(llm, ProxyLLM):
            raise TypeError(f"resource main_llm is a {type(llm).__name__}, not a ProxyLLM")
        attempt_id = rollout.attempt.attempt_id
        spec = RolloutSpec(
            id=rollout_id(self.run_id, self.attempt, rollout.attempt),
            domain=Domain(config.domain),
            task_id=task_id,
            mode=RolloutMode.TRAIN if rollout.mode == "train" else RolloutMode.VALIDATION,
            max_steps=config.rollout.max_steps,
            max_errors=config.rollout.max_errors,
            window_tokens=config.rollout.window_tokens,
            max_prompt_tokens=config.training.max_prompt_tokens,
            timeout_seconds=config.rollout.timeout_seconds,
            run_id=self.run_id,
            attempt=self.attempt,
            step=metadata.get("step", 0),
        )
        options = {
            **llm.sampling_parameters,
            "max_tokens": config.training.max_response_tokens,
        }
        if config.engine is Engine.CPU:
            # Our server mixes the prompt in. vLLM would draw every turn with the same noise, and a
            # turn would no longer be a sample of the policy given the turns before.
            options["seed"] = metadata.get("seed", 0) + rollout.attempt.sequence_id - 1
        assistant = OpenAIChatCompletionClient(
            model=llm.model,
            async_client=self._endpoint().with_options(
                base_url=llm.get_base_url(rollout.rollout_id, attempt_id)
            ),
        )
        user = user_client(config.user_simulator, load_task(spec.domain, task_id))
        try:
            return await run_rollout(
                spec,
                assistant,
                user,
                assistant_options=options,
                count_tokens=self._tokenizer.text_tokens,
                count_prompt=self._tokenizer.prompt_tokens,
                on_failure=on_failure,
            )
        finally:
            await close(user)

    def _endpoint(self) -> AsyncOpenAI:
        """The process's connection to the proxy; a new one for each rollout costs 20 ms."""
        if self._openai is None:
            self._openai = AsyncOpenAI(
                api_key=self._api_key,
                timeout=self.config.rollout.timeout_seconds,
                # A retried call would leave two spans of one turn; the whole rollout is retried.
                max_retries=0,
            )
        return self._openai

    def _training_reward(self, document: RolloutDoc) -> float:
        """τ²'s reward; where the config asks for it, a shaped one, or chance as a control.

        Validation is given τ²'s own in any case.
        """
        flipped = self.config.reward.control == "coin_flip"
        if flipped and document.mode is RolloutMode.TRAIN:
            digest = hashlib.sha256(f"{self.config.seed}/{document.id}".encode()).digest()
            return float(digest[0] & 1)
        shaped = document.shaped_reward if document.mode is RolloutMode.TRAIN else None
        reward = document.reward if shaped is None else shaped
        if reward is None:
            raise RolloutNotJudged(f"{document.outcome} has no reward")
        return reward


def rollout_id(run_id: str, attempt: int, tried: Attempt) -> str:
    """An id of ours that is the same when the same try is reported again, and sorts by time.

    As the API's own ids: 10 characters of milliseconds, then 16 that tell it apart.
    """
    text = f"{run_id}/{attempt}/{tried.rollout_id}/{tried.attempt_id}"
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:10])
    return f"ro_{_base32(int(tried.start_time * 1000), 10)}{_base32(digest, 16)}"


def _base32(number: int, length: int) -> str:
    """Crockford's base 32, lower case, the last ``length`` digits."""
    digits = [CROCKFORD[(number >> (5 * place)) & 31] for place in range(length)]
    return "".join(reversed(digits))
