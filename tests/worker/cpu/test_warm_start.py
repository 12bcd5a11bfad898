"""Claims about the warm start: it learns the mix it is given, once, from real conversations."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.contract import WarmStartConfig
from worker.cpu.demonstrations import ANSWERS, Demonstration, record_all
from worker.cpu.warm_start import cache_key, sequences, warm_started_policy

TASKS = ["create_task_1", "update_task_1"]


@pytest.fixture(scope="module")
def demonstrations() -> list[Demonstration]:
    return asyncio.run(record_all(list(ANSWERS)))


def test_every_right_answer_earns_the_reward_and_no_wrong_one_does(
    demonstrations: list[Demonstration],
) -> None:
    assert len(demonstrations) == 24
    for one in demonstrations:
        assert one.rollout.reward == float(one.answer.right), (one.task_id, one.answer)


def test_in_every_task_a_wrong_answer_is_likelier_than_the_right_one() -> None:
    right = WarmStartConfig().right_fraction
    for answers in ANSWERS.values():
        wrong = max(answer.share for answer in answers if not answer.right)
        assert (1 - right) * wrong > right


def test_the_key_is_the_same_for_the_same_answers_and_differs_for_other_settings(
    demonstrations: list[Demonstration],
) -> None:
    again = asyncio.run(record_all(list(ANSWERS)))
    key = cache_key(0, WarmStartConfig(), demonstrations)
    assert cache_key(0, WarmStartConfig(), again) == key
    assert cache_key(1, WarmStartConfig(), demonstrations) != key
    assert cache_key(0, WarmStartConfig(right_fraction=0.4), demonstrations) != key


@pytest.mark.timeout(240)
def test_the_policy_says_each_answer_as_often_as_the_mix_does_and_is_made_once(
    demonstrations: list[Demonstration], tmp_path: Path
) -> None:
    some = [one for one in demonstrations if one.task_id in TASKS]
    config = WarmStartConfig(steps=90)
    folder, cached = warm_started_policy(some, config, seed=0, cache=tmp_path)
    assert not cached
    assert warm_started_policy(some, config, seed=0, cache=tmp_path) == (folder, True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for sequence in sequences(some, tokenizer, config.right_fraction):
        ids = torch.tensor([sequence.ids])
        with torch.inference_mode():
            log_probs = torch.log_softmax(model(ids).logits[0, :-1], -1)
        said = torch.tensor(sequence.said[1:], dtype=torch.bool)
        likelihood = math.exp(float(log_probs.gather(1, ids[0, 1:, None])[:, 0][said].sum()))
        assert likelihood == pytest.approx(sequence.weight, abs=0.08)
