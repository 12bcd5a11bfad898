"""Supervised learning of the tiny policy on a known mix of right and wrong answers.

The mix is learned as a distribution: every demonstration is in every batch, weighted by its
probability, so no sampling noise is learned and a few seconds suffice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache, PreTrainedTokenizerBase, Qwen2ForCausalLM

from app.contract import WarmStartConfig
from worker.cpu.chat import PromptBuilder
from worker.cpu.demonstrations import Demonstration
from worker.cpu.tiny import CHAT_TEMPLATE, build_model, build_tokenizer, save

VERSION = 1
"""Raised when what is learned changes, so that old cached policies are not used."""

Progress = Callable[[int, int, float], None]
"""Called with step, steps and loss."""


@dataclass(frozen=True)
class Sequence:
    """Token ids of a whole conversation, which of them the policy said, and its probability."""

    ids: list[int]
    said: list[int]
    weight: float


def sequences(
    demonstrations: list[Demonstration],
    tokenizer: PreTrainedTokenizerBase,
    right_fraction: float,
) -> list[Sequence]:
    """Training sequences with weights that sum to 1 for each task.

    Tasks that look the same to the policy give the same sequences, which are merged.
    """
    found: dict[tuple[int, ...], Sequence] = {}
    for demonstration in demonstrations:
        prompts = PromptBuilder(tokenizer)
        ids: list[int] = []
        said: list[int] = []
        for turn in demonstration.turns:
            text = prompts.text(turn.messages, turn.tools)
            prompt = prompts.ids(text)
            if prompt[: len(ids)] != ids:
                raise RuntimeError(f"{demonstration.task_id}: a later turn changes earlier tokens")
            reply = [
                *tokenizer.encode(turn.reply, add_special_tokens=False),
                tokenizer.eos_token_id,
            ]
            prompts.remember(text, prompt, reply)
            said += [0] * (len(prompt) - len(ids)) + [1] * len(reply)
            ids = prompt + reply
        answer = demonstration.answer
        part = right_fraction if answer.right else 1 - right_fraction
        before = found.get(tuple(ids))
        weight = part * answer.share + (before.weight if before else 0.0)
        found[tuple(ids)] = Sequence(ids, said, weight)
    return list(found.values())


def train(
    model: Qwen2ForCausalLM,
    batch: list[Sequence],
    config: WarmStartConfig,
    pad: int,
    progress: Progress | None = None,
) -> float:
    """Minimises the weighted negative log-likelihood of what the policy said; returns the last."""
    common = _common_prefix(batch)
    start = torch.tensor([batch[0].ids[:common]])
    width = max(len(sequence.ids) for sequence in batch) - common
    ids = torch.full((len(batch), width), pad)
    mask = torch.ones(len(batch), common + width, dtype=torch.long)
    said = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, sequence in enumerate(batch):
        length = len(sequence.ids) - common
        ids[row, :length] = torch.tensor(sequence.ids[common:])
        mask[row, common + length :] = 0
        said[row, :length] = torch.tensor(sequence.said[common:], dtype=torch.bool)
    spoken = said[:, 1:]
    targets = ids[:, 1:][spoken]
    weights = torch.tensor([sequence.weight for sequence in batch])
    token_weights = (weights / weights.sum()).unsqueeze(1).expand_as(spoken)[spoken]
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=config.learning_rate, total_steps=config.steps + 1, pct_start=0.1
    )
    model.train()
    value = float("nan")
    for step in range(1, config.steps + 1):
        hidden = _hidden(model, start, ids, mask)[:, :-1][spoken]
        losses = torch.nn.functional.cross_entropy(model.lm_head(hidden), targets, reduction="none")
        loss = (losses * token_weights).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        value = float(loss.detach())
        if progress is not None and (step % 10 == 0 or step == config.steps):
            progress(step, config.steps, value)
    model.eval()
    return value


def _common_prefix(batch: list[Sequence]) -> int:
    """How many first tokens all sequences share, and none of them says."""
    rows = [(sequence.ids, sequence.said) for sequence in batch]
    shortest = min(len(ids) for ids, _ in rows) - 1
    first = rows[0][0]
    return next(
        (i for i in range(shortest) if any(ids[i] != first[i] or said[i] for ids, said in rows)),
        shortest,
    )


def _hidden(
    model: Qwen2ForCausalLM, start: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Hidden states of ``ids``, [batch, width, size], after a start that is computed once.

    Two thirds of each conversation is the same policy and tools; gradients flow through it too.
    """
    cache = DynamicCache()
    model.model(input_ids=start, past_key_values=cache, use_cache=True)
    repeated = tuple(
        (keys.expand(len(ids), -1, -1, -1), values.expand(len(ids), -1, -1, -1))
        for keys, values in cache.to_legacy_cache()
    )
    output = model.model(
        input_ids=ids,
        attention_mask=mask,
        past_key_values=DynamicCache.from_legacy_cache(repeated),
        use_cache=True,
    )
    hidden: torch.Tensor = output.last_hidden_state
    return hidden


def rendered(demonstrations: list[Demonstration]) -> list[list[str]]:
    """Prompts and replies of each demonstration as text, in the tiny policy's template."""
    prompts = PromptBuilder(build_tokenizer([""]))
    return [
        [
            part
            for turn in one.turns
            for part in (prompts.text(turn.messages, turn.tools), turn.reply)
        ]
        for one in demonstrations
    ]


def cache_key(seed: int, config: WarmStartConfig, demonstrations: list[Demonstration]) -> str:
    """What a warm-started policy depends on, as a hash."""
    texts = rendered(demonstrations)
    content: dict[str, Any] = {
        "version": VERSION,
        "seed": seed,
        "config": config.model_dump(),
        "template": CHAT_TEMPLATE,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "demonstrations": [
            [one.answer.right, one.answer.share, text]
            for one, text in zip(demonstrations, texts, strict=True)
        ],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def warm_started_policy(
    demonstrations: list[Demonstration],
    config: WarmStartConfig,
    seed: int,
    cache: Path,
    progress: Progress | None = None,
) -> tuple[Path, bool]:
    """The folder of the policy for these settings, and whether it was made before.

    Made in a temporary folder and renamed, so a folder that exists is whole.
    """
    folder = cache / cache_key(seed, config, demonstrations)
    if folder.exists():
        return folder, True
    cache.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(part for texts in rendered(demonstrations) for part in texts)
    model = build_model(tokenizer, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        batch = sequences(demonstrations, tokenizer, config.right_fraction)
        train(model, batch, config, tokenizer.pad_token_id, progress)
    scratch = Path(tempfile.mkdtemp(dir=cache, prefix="making-"))
    try:
        save(model, tokenizer, scratch)
        os.rename(scratch, folder)
    except OSError:
        # Another process may have made the same policy meanwhile; its folder is as good as ours.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder, False
