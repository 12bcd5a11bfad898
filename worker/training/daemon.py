"""Between VERL's trainer and the rollouts: what is queued, when it is done, what is learned."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

import torch
from agentlightning.types import EnqueueRolloutRequest, RolloutConfig, RolloutLegacy
from agentlightning.verl.daemon import AgentModeDaemon
from verl import DataProto

from app.contract import RunConfig
from worker.retries import LONGEST_WAIT_SECONDS
from worker.training.proxy import loopback_proxy

POLL_SECONDS = 0.15
"""Longest time between the end of a step's last rollout and the step going on."""


class NothingToLearn(Exception):
    """No rollout of the step can be trained on."""


class RolloutsLost(RuntimeError):
    """Rollouts are queued and none ends: nobody seems to hold them."""


class TautrainDaemon(AgentModeDaemon):
    """agentlightning's daemon without its 5 s polls, and with rollouts that may be unjudged.

    A rollout without a reward (see ``app.contract.JUDGED``) is left out of the update and of the
    validation mean; the released daemon counts it as 0.
    """

    def __init__(self, *args: Any, run_config: RunConfig, **kwargs: Any) -> None:
        # Given here: the proxy that agentlightning would make looks for a public address.
        kwargs["llm_proxy"] = loopback_proxy(kwargs["store"])
        super().__init__(*args, **kwargs)
        self.run_config = run_config
        self.step = 0
        self.on_rollouts_ended: Callable[[], None] = lambda: None
        self._completed_rollouts_v0: dict[str, RolloutLegacy] = {}

    async def _async_set_up(
        self, data: dict[str, Any], server_addresses: list[str], is_train: bool = True
    ) -> None:
        """Queues every rollout of a step (train) or of a validation."""
        self.clear_data_and_server()
        self.backend_llm_server_addresses = server_addresses
        if not self.llm_proxy.is_running():
            await self._update_proxy_server_v1()
        self.is_train = is_train
        config = self.run_config
        temperature = config.rollout.temperature if is_train else config.validation.temperature
        resources = await self.store.add_resources(
            {
                "main_llm": self.llm_proxy.as_resource(
                    sampling_parameters={"temperature": temperature}
                )
            }
        )
        requests, samples = self._requests(data, is_train, resources.resources_id)
        for rollout in await self.store.enqueue_many_rollouts(requests):
            metadata = cast("dict[str, Any]", rollout.metadata)
            self._task_id_to_original_sample[rollout.rollout_id] = samples[metadata["data_id"]]
        self._total_tasks_queued = len(requests)

    def _requests(
        self, data: dict[str, Any], is_train: bool, resources_id: str
    ) -> tuple[list[EnqueueRolloutRequest], dict[str, dict[str, Any]]]:
        config = self.run_config
        repeats = config.rollout.n if is_train else config.validation.repeats
        samples = {str(uuid.uuid4()): {"id": str(task_id)} for task_id in data["id"]}
        requests = [
            EnqueueRolloutRequest(
                input=task,
                mode="train" if is_train else "val",
                resources_id=resources_id,
                config=self._retries(),
                metadata={
                    "data_id": data_id,
                    "is_train": is_train,
                    "step": self.step,
                    "repeat": repeat,
                    "seed": rollout_seed(config.seed, self.step, is_train, task["id"], repeat),
                },
            )
            for data_id, task in samples.items()
            for repeat in range(repeats)
        ]
        return requests, {
            data_id: {**task, "data_id": data_id} for data_id, task in samples.items()
        }

    def _retries(self) -> RolloutConfig:
        """The conversation has a deadline of its own; the store's is for a runner that died.

        A try that is to be made again ends only after its wait.
        """
        seconds = _store_seconds(self.run_config)
        return RolloutConfig(
            timeout_seconds=seconds,
            unresponsive_seconds=seconds,
            max_attempts=self.run_config.rollout.max_attempts,
            retry_condition=["failed", "timeout", "unresponsive"],
        )

    async def _async_run_until_finished(self, verbose: bool = True) -> None:
        """Returns when the last rollout has ended."""
        waiting = set(self._task_id_to_original_sample)
        patience = self._patience()
        heard = time.monotonic()
        while waiting:
            for rollout in await self.store.wait_for_rollouts(rollout_ids=list(waiting), timeout=0):
                waiting.discard(rollout.rollout_id)
                finished = await self._validate_data_v1(rollout)
                self._completed_rollouts_v0[rollout.rollout_id] = finished
                heard = time.monotonic()
            if time.monotonic() - heard > patience:
                raise RolloutsLost(f"no rollout has ended for {patience:.0f} s")
            if waiting:
                await asyncio.sleep(POLL_SECONDS)

    def _patience(self) -> float:
        """Longest time between two ends of rollouts: every try of one may run out of time."""
        rollout = self.run_config.rollout
        return rollout.max_attempts * (_store_seconds(self.run_config) + 60)

    def get_train_data_batch(
        self,
        max_prompt_length: int,
        max_response_length: int,
        device: torch.device,
        global_steps: int,
    ) -> tuple[DataProto, dict[str, Any]]:
        """The step's samples, of judged rollouts only.

        Raises:
            NothingToLearn: fewer samples than one mini-batch; VERL would crash on the empty batch.
        """
        self.on_rollouts_ended()
        planned = self._total_tasks_queued
        self._leave_out_unjudged()
        if not self._completed_rollouts_v0:
            raise NothingToLearn(f"none of {planned} rollouts was judged")
        batch, metrics = super().get_train_data_batch(
            max_prompt_length, max_response_length, device, global_steps
        )
        usable = int((~batch.batch["is_drop_mask"]).sum())
        if usable < self.mini_batch_size:
            raise NothingToLearn(f"{usable} samples are less than a mini-batch")
        batch.batch["token_level_scores"] = self._exact_scores(batch)
        metrics["training/n_rollouts_left_out"] = planned - len(self._completed_rollouts_v0)
        return batch, metrics

    def get_test_metrics(self) -> dict[str, Any]:
        """The validation's metrics, of judged rollouts only; without any there is no mean."""
        planned = self._total_tasks_queued
        # A rollout that was judged before the policy said a word counts here; it has no sample.
        self._leave_out_unjudged(samples_needed=False)
        judged = len(self._completed_rollouts_v0)
        coverage = {"val/planned": planned, "val/judged": judged}
        if not judged:
            return coverage
        metrics: dict[str, Any] = super().get_test_metrics()
        return metrics | coverage

    def _exact_scores(self, batch: DataProto) -> torch.Tensor:
        """Each rollout's reward at its last token, [samples, response], in float32.

        agentlightning 0.3.0 keeps them in bfloat16, in which .900, .901 and .902 are one number.
        """
        mask = batch.batch["attention_mask"]
        width = batch.batch["responses"].shape[1]
        scores = torch.zeros(len(mask), width)
        for row, rollout_id in enumerate(batch.non_tensor_batch["rollout_id_list"]):
            said = int(mask[row, -width:].sum())
            if said:
                reward = self._completed_rollouts_v0[rollout_id].final_reward
                scores[row, said - 1] = float(reward)
        return scores

    def _leave_out_unjudged(self, *, samples_needed: bool = True) -> None:
        judged = {
            rollout_id: rollout
            for rollout_id, rollout in self._completed_rollouts_v0.items()
            if rollout.final_reward is not None and (rollout.triplets or not samples_needed)
        }
        self._completed_rollouts_v0 = judged
        self._total_tasks_queued = len(judged)


def _store_seconds(config: RunConfig) -> float:
    return config.rollout.timeout_seconds * 2 + 60 + LONGEST_WAIT_SECONDS


def rollout_seed(seed: int, step: int, is_train: bool, task_id: str, repeat: int) -> int:
    """A sampling seed of its own for each rollout, the same in every run with this config."""
    text = f"{seed}/{step}/{is_train}/{task_id}/{repeat}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
