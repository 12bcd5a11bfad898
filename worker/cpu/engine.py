"""The Ray worker of the CPU engine: VERL's actor, real checkpoints, and the policy server.

Where VERL's own FSDP worker needs a GPU, this one holds a plain transformers model in a process
group of one. Everything above it (advantages, losses, clipping, mini-batches) is VERL's code.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from omegaconf import DictConfig
from torch._C._distributed_c10d import HashStore
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.actor.dp_actor import DataParallelPPOActor

from worker.cpu.audit import SamplingAudit
from worker.cpu.chat import PromptBuilder
from worker.cpu.generate import Generator
from worker.cpu.padding import trim
from worker.cpu.server import PolicyServer

MODEL_FOLDER = "huggingface"
STATE_FILE = "optimizer.pt"


class CpuActorWorker(Worker):
    """Actor, reference policy and rollout server in one process.

    Args:
        config: VERL's ``actor_rollout_ref``.
        seed: Seeds this process.
    """

    def __init__(self, config: DictConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        # As VERL's FSDP worker does: the config counts tasks, the actor counts samples.
        self.config.actor.ppo_mini_batch_size *= self.config.rollout.n
        self.seed = seed
        # Read in the sources of gloo: without it the interface is found through the host's name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.threads = max(1, min(os.cpu_count() or 1, 8))
        if not torch.distributed.is_initialized():
            # A store in memory: the TCP store asks a name server who 127.0.0.1 is.
            torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Loads the model and starts the policy server."""
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)
        torch.manual_seed(self.seed)
        path = self.config.model.path
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = _load(path)
        if self.config.model.enable_gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
        actor = self.config.actor
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=actor.optim.lr,
            weight_decay=actor.optim.weight_decay,
            betas=tuple(actor.optim.betas),
        )
        self.actor = DataParallelPPOActor(
            config=omega_conf_to_dataclass(actor),
            actor_module=self.model,
            actor_optimizer=self.optimizer,
        )
        self.reference: DataParallelPPOActor | None = None
        if actor.use_kl_loss:
            frozen = copy.deepcopy(self.model).requires_grad_(False)
            self.reference = DataParallelPPOActor(
                config=omega_conf_to_dataclass(actor), actor_module=frozen
            )
        self.audit = SamplingAudit()
        self.generator = Generator(
            self.model, end=self.tokenizer.eos_token_id, pad=self.tokenizer.pad_token_id
        )
        rollout = self.config.rollout
        self.server = PolicyServer(
            self.generator,
            PromptBuilder(self.tokenizer),
            model_name=path,
            max_prompt_tokens=rollout.prompt_length,
            max_response_tokens=rollout.response_length,
            on_reply=self.audit.sampled,
        )
        self.server.start()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def server_address(self) -> str:
        """``host:port`` of the policy server."""
        return self.server.address

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto) -> DataProto:
        """``old_log_probs`` and ``entropys``, [batch, response], at the rollout temperature."""
        log_probs, entropies = self._paused(self.actor, data, entropy=True)
        self.audit.compare(data, log_probs)
        return DataProto.from_dict(
            tensors={"old_log_probs": log_probs, "entropys": entropies},
            meta_info={"temperature": self.config.rollout.temperature},
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """``ref_log_prob``, [batch, response]."""
        if self.reference is None:
            raise RuntimeError("there is no reference policy: the config asks for no KL loss")
        log_probs, _ = self._paused(self.reference, data, entropy=False)
        return DataProto.from_dict(tensors={"ref_log_prob": log_probs})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, data: DataProto) -> DataProto:
        """VERL's PPO update; returns its metrics."""
        self.generator.pause()
        torch.set_num_threads(self.threads)
        try:
            data.meta_info.setdefault("temperature", self.config.rollout.temperature)
            metrics = self.actor.update_policy(trim(data).data)
        finally:
            self.model.eval()
            self.generator.resume()
        metrics["actor/lr"] = self.optimizer.param_groups[0]["lr"]
        metrics.update(self.audit.take())
        return DataProto(meta_info={"metrics": metrics})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        """Writes model and tokenizer (for ``from_pretrained``), optimizer and step.

        Written beside the target and renamed, so that a folder with this name is whole.
        ``max_ckpt_to_keep`` is the trainer's business here: only it knows which is the best.
        """
        target = Path(local_path)
        scratch = target.with_name(f"{target.name}.writing")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        self.model.save_pretrained(scratch / MODEL_FOLDER)
        self.tokenizer.save_pretrained(scratch / MODEL_FOLDER)
        state = {
            "step": global_step,
            "optimizer": self.optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
        }
        torch.save(state, scratch / STATE_FILE)
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self,
        local_path: str | None,
        hdfs_path: str | None = None,
        del_local_after_load: bool = False,
    ) -> None:
        """Loads what ``save_checkpoint`` wrote; None leaves the model as it is."""
        if local_path is None:
            return
        source = Path(local_path)
        self.generator.pause()
        try:
            self.model.load_state_dict(_load(str(source / MODEL_FOLDER)).state_dict())
            # weights_only: a checkpoint is data and must not be able to run code.
            state = torch.load(source / STATE_FILE, weights_only=True)
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["torch_rng"])
        finally:
            self.generator.resume()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        """Stops the server and the generator."""
        self.server.close()
        self.generator.close()
        with suppress(ValueError):
            torch.distributed.destroy_process_group()

    def _paused(
        self, actor: DataParallelPPOActor, data: DataProto, *, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rollout = self.config.rollout
        data.meta_info.update(
            micro_batch_size=rollout.log_prob_micro_batch_size_per_gpu,
            temperature=rollout.temperature,
            use_dynamic_bsz=False,
        )
        trimmed = trim(data)
        self.generator.pause()
        torch.set_num_threads(self.threads)
        try:
            log_probs, entropies = actor.compute_log_prob(trimmed.data, calculate_entropy=entropy)
        finally:
            self.generator.resume()
        return trimmed.widen(log_probs), None if entropies is None else trimmed.widen(entropies)


def _load(path: str) -> Any:
    """A causal model in float32 with SDPA attention, from a local path only."""
    return AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="sdpa", dtype=torch.float32, local_files_only=True
    )
