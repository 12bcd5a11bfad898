"""Keys and values of prompts that were read, for prompts that begin the same."""

from __future__ import annotations

from collections import OrderedDict

import torch
from transformers import DynamicCache

MOST = 64
"""How many prompts are kept; the least recently used goes first."""

SHORTEST = 16
"""A shorter common beginning is not worth the look-up."""

KeyValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Per layer: keys and values, each [batch, heads, positions, head size]."""


class PrefixCache:
    """Not for more than one thread at a time."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[tuple[int, ...], KeyValues] = OrderedDict()

    def longest(self, prompt: list[int]) -> tuple[int, KeyValues]:
        """Length and keys and values of the longest known beginning of ``prompt``.

        At least one token of the prompt is left over, because its logits are wanted.
        """
        best, best_length = None, 0
        for known in self._prompts:
            limit = min(len(known), len(prompt) - 1)
            if limit <= best_length:
                continue
            length = next((i for i in range(limit) if known[i] != prompt[i]), limit)
            if length > best_length:
                best, best_length = known, length
        if best is None or best_length < SHORTEST:
            return 0, []
        self._prompts.move_to_end(best)
        return best_length, [
            (keys[:, :, :best_length], values[:, :, :best_length])
            for keys, values in self._prompts[best]
        ]

    def keep(self, prompt: list[int], keys_values: KeyValues) -> None:
        """Remembers a prompt that was read whole."""
        self._prompts[tuple(prompt)] = keys_values
        while len(self._prompts) > MOST:
            self._prompts.popitem(last=False)

    def clear(self) -> None:
        """Forgets all; they belong to weights that have changed."""
        self._prompts.clear()


def layers(cache: DynamicCache) -> KeyValues:
    """What a cache of transformers holds."""
    return [(layer[0], layer[1]) for layer in cache.to_legacy_cache()]
