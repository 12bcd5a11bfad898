"""Holds each update against what was sampled: the same tokens, with the same probabilities.

Reinforcement learning fails quietly when the tokens that are trained are not the tokens that were
sampled, or when their probabilities are not those they were sampled with. Here both are known, so
both are counted in every step and reported with the step's metrics.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import torch
from verl import DataProto

from worker.cpu.generate import Generation

REMEMBERED_GENERATIONS = 100_000


class SamplingAudit:
    """Remembers what was sampled since the last update."""

    def __init__(self) -> None:
        self._sampled: OrderedDict[tuple[int, ...], list[float]] = OrderedDict()
        self._lock = threading.Lock()
        self._metrics: dict[str, float] = {}

    def sampled(self, prompt: list[int], generation: Generation) -> None:
        """Called by the policy server for each reply."""
        with self._lock:
            self._sampled[(*prompt, *generation.ids)] = generation.log_probs
            while len(self._sampled) > REMEMBERED_GENERATIONS:
                self._sampled.popitem(last=False)

    def compare(self, batch: DataProto, log_probs: torch.Tensor) -> None:
        """Compares a batch (left-padded prompts, right-padded responses) with what was sampled.

        Args:
            log_probs: VERL's own, [batch, response], at the sampling temperature.
        """
        trained = unsampled = 0
        largest = 0.0
        ids, mask = batch.batch["input_ids"], batch.batch["attention_mask"]
        trained_mask = batch.batch["response_mask"]
        prompt_width = ids.shape[1] - trained_mask.shape[1]
        for row in range(len(ids)):
            padding = prompt_width - int(mask[row, :prompt_width].sum())
            for start, end in _segments(trained_mask[row].tolist()):
                key = tuple(ids[row, padding : prompt_width + end].tolist())
                with self._lock:
                    known = self._sampled.get(key)
                trained += end - start
                if known is None or len(known) != end - start:
                    unsampled += end - start
                    continue
                difference = (log_probs[row, start:end] - torch.tensor(known)).abs().max()
                largest = max(largest, float(difference))
        self._metrics = {
            "audit/trained_tokens": float(trained),
            "audit/trained_tokens_not_sampled": float(unsampled),
            "audit/log_prob_difference_max": largest,
        }

    def take(self) -> dict[str, float]:
        """The metrics of the last comparison; forgets what was sampled."""
        with self._lock:
            self._sampled.clear()
        metrics, self._metrics = self._metrics, {}
        return metrics


def _segments(mask: list[int]) -> list[tuple[int, int]]:
    """Runs of ones as (start, end)."""
    edges = [0, *mask, 0]
    starts = [i for i in range(len(mask)) if edges[i + 1] and not edges[i]]
    ends = [i + 1 for i in range(len(mask)) if edges[i + 1] and not edges[i + 2]]
    return list(zip(starts, ends, strict=True))
