"""VERL's trainer as agentlightning drives it, reporting each step."""

from __future__ import annotations

import functools
import json
import math
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from agentlightning.verl.trainer import AgentLightningTrainer
from verl.single_controller.ray.base import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
)

from app.contract import Phase
from worker.cpu.engine import CpuActorWorker
from worker.handover import SPENT_NAME, STOP_REASON_NAME, AttemptInput
from worker.reporter import Reporter
from worker.training.daemon import NothingToLearn


class ReportingTrainer(AgentLightningTrainer):
    """Reports phases, every metric and checkpoints to the API while training goes on.

    It runs inside a Ray actor. ``config.tautrain.attempt`` is the path of the attempt's input.
    """

    def __init__(self, **kwargs: Any) -> None:
        attempt = AttemptInput.read(Path(kwargs["config"].tautrain.attempt))
        self.run_config = attempt.claim.config
        seed = self.run_config.seed
        # agentlightning shuffles samples with the global generator.
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        kwargs["daemon_cls"] = functools.partial(kwargs["daemon_cls"], run_config=self.run_config)
        super().__init__(**kwargs)
        self.reporter = Reporter(attempt.reporter_config(), source="trainer")
        self.validation_reward: float | None = None
        self.best = Best(Path(self.config.trainer.default_local_dir))
        self._stop_file = attempt.attempt_dir / STOP_REASON_NAME
        self._spent_file = attempt.attempt_dir / SPENT_NAME
        self._deadline = _deadline(attempt, self.run_config.budget.max_seconds)

    def fit(self) -> None:
        """Trains to the end; what was reported is shipped before it returns."""
        try:
            super().fit()
        except NothingLeft:
            self.reporter.event("nothing_left_to_train", {"step": self.global_steps})
        except EndedEarly as end:
            self.reporter.event("ended_early", {"step": self.global_steps, "why": str(end)})
        finally:
            self.reporter.close(timeout=10)

    def _load_checkpoint(self) -> None:
        """Loads what the claim resumes from.

        Raises:
            NothingLeft: it is of the last step already. agentlightning would train one more.
        """
        super()._load_checkpoint()
        if self.global_steps >= self.total_training_steps:
            raise NothingLeft

    def _epoch(self) -> int:
        steps: int = self.global_steps
        return max(0, steps - 1) // max(1, len(self.train_dataloader))

    def _progress(self, phase: Phase) -> None:
        self.reporter.progress(phase, step=self.global_steps, epoch=self._epoch())

    def _train_step(self, batch_dict: dict[str, Any]) -> dict[str, Any]:
        self._progress(Phase.ROLLOUT)
        self.agent_mode_daemon.step = self.global_steps
        self.agent_mode_daemon.on_rollouts_ended = lambda: self._progress(Phase.UPDATE)
        # A checkpoint of a step that is not validated has no score, not the last one's.
        self.validation_reward = None
        try:
            metrics: dict[str, Any] = super()._train_step(batch_dict)
        except NothingToLearn as nothing:
            # Nothing is known against the policy in such a step, so it stays as it is.
            self.agent_mode_daemon.clear_data_and_server()
            self.async_rollout_manager.sleep()
            self.reporter.event(
                "step_without_update", {"step": self.global_steps, "why": str(nothing)}
            )
            metrics = {"training/skipped": 1.0}
        self.reporter.metrics(self.global_steps, metrics)
        self._end_if_spent()
        return metrics

    def _validate(self) -> dict[str, Any]:
        self._progress(Phase.VALIDATING)
        self.agent_mode_daemon.step = self.global_steps
        metrics: dict[str, Any] = super()._validate()
        self.validation_reward = self._score(metrics)
        self.reporter.metrics(self.global_steps, metrics)
        return metrics

    def _score(self, metrics: dict[str, Any]) -> float | None:
        """The validation's mean, or None where too little was judged to call it one."""
        planned, judged = metrics["val/planned"], metrics["val/judged"]
        coverage = judged / planned if planned else 0.0
        needed = self.run_config.validation.min_coverage
        if judged and coverage >= needed:
            return float(metrics["val/reward"])
        self.reporter.event(
            "validation_incomplete",
            {"step": self.global_steps, "judged": judged, "planned": planned, "needed": needed},
        )
        return None

    def _end_if_spent(self) -> None:
        """Ends training after a step in which the run's budget was spent.

        Raises:
            EndedEarly: this step was validated and saved as a last step is.
        """
        if time.monotonic() > self._deadline:
            why = "budget.max_seconds"
        elif self._spent_file.exists():
            why = self._spent_file.read_text()
        else:
            return
        if self.global_steps >= self.total_training_steps:
            return
        self._stop_file.write_text("budget")
        self._validate()
        self._save_checkpoint()
        raise EndedEarly(why)

    def _save_checkpoint(self) -> None:
        self._progress(Phase.CHECKPOINT)
        super()._save_checkpoint()
        step = self.global_steps
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{step}"
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        self.reporter.checkpoint(
            step=step,
            path=str(folder),
            size_bytes=size,
            validation_reward=self.validation_reward,
        )
        if self.validation_reward is not None:
            self.best.offer(step, self.validation_reward)
        self._forget_old_checkpoints()

    def _forget_old_checkpoints(self) -> None:
        """Keeps the newest ``keep_checkpoints`` and the best by validation."""
        folders = sorted(
            Path(self.config.trainer.default_local_dir).glob("global_step_*"),
            key=lambda folder: int(folder.name.rsplit("_", 1)[1]),
        )
        keep = {folder.name for folder in folders[-self.run_config.training.keep_checkpoints :]}
        keep.add(f"global_step_{self.best.step}")
        for folder in folders:
            if folder.name not in keep:
                shutil.rmtree(folder)
                self.reporter.checkpoint_removed(int(folder.name.rsplit("_", 1)[1]))


class EndedEarly(Exception):
    """The run's budget is spent; the message names the field."""


class NothingLeft(Exception):
    """The run was trained to its last step by an earlier attempt."""


class Best:
    """The best step by validation, kept in a file beside the checkpoints for later attempts."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "best.json"
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.step: int | None = known.get("step")
        self.reward: float = known.get("reward", -math.inf)

    def offer(self, step: int, reward: float) -> None:
        """Takes the step if it is at least as good as the best so far."""
        if reward >= self.reward:
            self.step, self.reward = step, reward
            self._file.write_text(json.dumps({"step": step, "reward": reward}))


def _deadline(attempt: AttemptInput, max_seconds: float | None) -> float:
    """When, on the monotonic clock, the time is up; it began when the input was written."""
    if max_seconds is None:
        return math.inf
    spent = time.time() - attempt.path.stat().st_mtime
    return time.monotonic() + max_seconds - spent


class PolicyServers:
    """What agentlightning's trainer asks of VERL's rollout manager, over servers that always run.

    The servers share their weights with the actor, so there is nothing to wake or put to sleep.
    """

    def __init__(self, server_addresses: list[str]) -> None:
        self.server_addresses = server_addresses

    def wake_up(self) -> None:
        """Before rollouts: the server is awake."""

    def sleep(self) -> None:
        """After rollouts: the server stays awake."""


class CpuTrainer(ReportingTrainer):
    """The same loop over one CPU worker that is actor, reference and rollout server."""

    def init_workers(self) -> None:
        """One Ray worker on one CPU, in place of VERL's GPU pools and vLLM servers."""
        pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
        worker = RayClassWithInitArgs(
            cls=ray.remote(CpuActorWorker),
            config=self.config.actor_rollout_ref,
            seed=self.run_config.seed,
        )
        group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=worker, device_name="cpu")
        group.init_model()
        self.actor_rollout_wg = group
        self.ref_policy_wg = group
        self.async_rollout_mode = True
        self.async_rollout_manager = PolicyServers(group.server_address())

    def fit(self) -> None:
        """Trains, then stops the policy server."""
        super().fit()
        # Not after an error: the actor may be what failed, and the session ends it anyway.
        self.actor_rollout_wg.close()
