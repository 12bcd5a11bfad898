"""Claims about taking padding away: nothing that counts is lost, and results fit back."""

from __future__ import annotations

import torch
from verl import DataProto

from worker.cpu.padding import trim


def _batch(prompt_lengths: list[int], response_lengths: list[int], width: int = 8) -> DataProto:
    rows = len(prompt_lengths)
    mask = torch.zeros(rows, 2 * width, dtype=torch.long)
    for row, (prompt, response) in enumerate(zip(prompt_lengths, response_lengths, strict=True)):
        mask[row, width - prompt : width + response] = 1
    ids = torch.arange(rows * 2 * width).reshape(rows, 2 * width) * mask
    return DataProto.from_dict(
        tensors={
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": torch.clamp(mask.cumsum(-1) - 1, min=0),
            "responses": ids[:, width:],
            "response_mask": mask[:, width:],
            "advantages": torch.ones(rows, width),
        }
    )


def test_only_columns_that_no_row_uses_go() -> None:
    batch = _batch([3, 5], [2, 6])
    trimmed = trim(batch)
    assert trimmed.data.batch["input_ids"].shape == (2, 11)
    assert trimmed.data.batch["responses"].shape == (2, 6)
    assert int(trimmed.data.batch["attention_mask"].sum()) == int(
        batch.batch["attention_mask"].sum()
    )
    assert torch.equal(trimmed.data.batch["input_ids"][:, -6:], trimmed.data.batch["responses"])


def test_results_come_back_as_wide_as_the_responses_were() -> None:
    trimmed = trim(_batch([3], [2]))
    wide = trimmed.widen(torch.ones(1, 2))
    assert wide.tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]]


def test_a_full_batch_stays_as_it_is() -> None:
    batch = _batch([8], [8])
    assert torch.equal(trim(batch).data.batch["input_ids"], batch.batch["input_ids"])


def test_an_empty_response_keeps_one_column() -> None:
    assert trim(_batch([2], [0])).data.batch["responses"].shape == (1, 1)
