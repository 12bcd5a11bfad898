"""Doing nothing and the reference earn what was measured of the benchmark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest

from app.contract import (
    Domain,
    DoNothingAssistant,
    ReferenceAssistant,
    RolloutDoc,
    RunConfig,
    ScriptedUser,
    TaskBaseline,
    split_tasks,
)
from app.presets import PRESETS, RECIPE
from tests.worker.rollouts.fakes import converse, spec
from worker.rollouts import baselines as module
from worker.rollouts.assistants import assistant_client, partner_of
from worker.rollouts.baselines import baselines, task_baseline
from worker.rollouts.tasks import load_task, task_ids, tau2_splits


def rollout(
    domain: Domain, task_id: str, assistant: ReferenceAssistant | DoNothingAssistant
) -> RolloutDoc:
    """A rollout with the limits that a debug rollout has by default."""
    task = load_task(domain, task_id)
    return converse(
        assistant_client(assistant, task),
        partner_of(assistant, ScriptedUser(), task),
        spec(task_id, domain, max_steps=100, max_errors=10, window_tokens=4000),
    )


def test_the_baselines_of_mock_are_the_measured_ones_and_take_under_three_seconds() -> None:
    started = time.process_time()
    found = baselines(Domain.MOCK, task_ids(Domain.MOCK))
    assert time.process_time() - started < 3
    assert [b.task_id for b in found] == task_ids(Domain.MOCK)
    assert mean(b.do_nothing or 0 for b in found) == pytest.approx(1 / 9)
    assert mean(b.reference or 0 for b in found) == pytest.approx(8 / 9)
    assert [b.task_id for b in found if not b.reference] == [
        "update_task_with_history_and_env_assertions"
    ]


@pytest.mark.parametrize(
    ("domain", "some"),
    [
        (Domain.AIRLINE, ["14"]),
        (Domain.RETAIL, ["3", "113"]),
        (Domain.TELECOM, slice(0, 114, 6)),
    ],
)
def test_the_reference_earns_everything(domain: Domain, some: Sequence[str] | slice) -> None:
    chosen = task_ids(domain)[some] if isinstance(some, slice) else some
    earned = {task: rollout(domain, task, ReferenceAssistant()).reward for task in chosen}
    assert earned == dict.fromkeys(chosen, 1.0)


@pytest.mark.parametrize(
    ("domain", "measured"), [(Domain.AIRLINE, 0.38), (Domain.RETAIL, 0.061), (Domain.TELECOM, 0.0)]
)
def test_doing_nothing_earns_the_measured_mean(domain: Domain, measured: float) -> None:
    earned = {task: rollout(domain, task, DoNothingAssistant()).reward for task in task_ids(domain)}
    assert mean(reward or 0 for reward in earned.values()) == pytest.approx(measured, abs=5e-4)
    if domain is Domain.AIRLINE:
        split = RunConfig.model_validate(PRESETS[RECIPE]).split
        parts = split_tasks(split, task_ids(domain), tau2_splits(domain))
        assert [mean(earned[task] or 0 for task in part) for part in parts] == pytest.approx(
            [0.36, 0.40]
        )


def test_doing_nothing_earns_where_nothing_was_to_be_done() -> None:
    earned = [rollout(Domain.AIRLINE, task, DoNothingAssistant()).reward for task in ("1", "7")]
    assert earned == [1.0, 0.0]


def test_the_reference_shows_its_calls_and_says_what_is_required() -> None:
    document = rollout(Domain.AIRLINE, "7", ReferenceAssistant())
    task = load_task(Domain.AIRLINE, "7")
    made = [call.name for m in document.messages for call in m.tool_calls or []]
    assert made == [action.name for action in task.evaluation_criteria.actions]
    required = task.evaluation_criteria.communicate_info
    assert required
    assert [c.what for c in document.checks if c.kind == "communicate" and c.passed] == required


def test_known_baselines_are_read_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counting(domain: Domain, task_id: str) -> TaskBaseline:
        made.append(task_id)
        return task_baseline(domain, task_id)

    monkeypatch.setattr(module, "task_baseline", counting)
    first, second = task_ids(Domain.MOCK)[:2]
    once = baselines(Domain.MOCK, [first], tmp_path)
    assert baselines(Domain.MOCK, [second, first], tmp_path)[1] == once[0]
    assert made == [first, second]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_a_cache_that_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    first = task_ids(Domain.MOCK)[0]
    expected = baselines(Domain.MOCK, [first], tmp_path)
    (path,) = tmp_path.iterdir()
    for broken in (b"{", b'[{"task_id": 3}]', b"null"):
        path.write_bytes(broken)
        assert baselines(Domain.MOCK, [first], tmp_path) == expected


def test_a_baseline_that_failed_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = task_ids(Domain.MOCK)[0]
    with monkeypatch.context() as patch:
        patch.setattr(
            module,
            "task_baseline",
            lambda _, t: TaskBaseline(task_id=t, do_nothing=None, reference=1),
        )
        assert baselines(Domain.MOCK, [first], tmp_path)[0].do_nothing is None
    assert baselines(Domain.MOCK, [first], tmp_path)[0].do_nothing == 0.0
