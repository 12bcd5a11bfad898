"""Takes away the columns of a batch that are padding in every row.

VERL pads prompts on the left and responses on the right to the configured maxima. On a GPU with
padding removed that costs nothing; here the model would compute all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from verl import DataProto

_WHOLE = ("input_ids", "attention_mask", "position_ids")
"""Tensors over prompt and response, [batch, prompt + response]."""


@dataclass(frozen=True)
class Trimmed:
    """A batch without common padding, and how wide its responses were."""

    data: DataProto
    response_width: int

    def widen(self, values: torch.Tensor) -> torch.Tensor:
        """[batch, trimmed response] → [batch, response], zero where there is only padding."""
        missing = self.response_width - values.shape[1]
        return torch.nn.functional.pad(values, (0, missing))


def trim(data: DataProto) -> Trimmed:
    """A copy of ``data`` (its tensors are views) without the columns that no row uses."""
    mask = data.batch["attention_mask"]
    width = data.batch["responses"].shape[1]
    prompt_width = mask.shape[1] - width
    used = mask.sum(0) > 0
    first = (
        int(used[:prompt_width].int().argmax()) if used[:prompt_width].any() else prompt_width - 1
    )
    last = int(used[prompt_width:].nonzero().max()) + 1 if used[prompt_width:].any() else 1
    tensors = {}
    for name, tensor in data.batch.items():
        if name in _WHOLE:
            tensors[name] = tensor[:, first : prompt_width + last]
        elif tensor.dim() == 2 and tensor.shape[1] == width:
            tensors[name] = tensor[:, :last]
        else:
            tensors[name] = tensor
    trimmed = DataProto.from_dict(
        tensors=tensors, non_tensors=dict(data.non_tensor_batch), meta_info=data.meta_info
    )
    return Trimmed(trimmed, width)
