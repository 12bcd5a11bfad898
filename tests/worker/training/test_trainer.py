"""Claims about the trainer's own part: early ends, kept checkpoints, steps that teach nothing."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentlightning.verl.trainer import AgentLightningTrainer

from app.contract import Phase, RunConfig
from worker.training.daemon import NothingToLearn
from worker.training.trainer import Best, EndedEarly, NothingLeft, ReportingTrainer


class RecordingReporter:
    """A fake reporter: keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def progress(self, phase: Phase, step: int, epoch: int) -> None:
        self.said.append(("progress", phase, step, epoch))

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        self.said.append(("metrics", step, values))

    def event(self, type: str, data: dict[str, Any]) -> None:  # noqa: A002 the contract's word
        self.said.append(("event", type, data))

    def checkpoint_removed(self, step: int) -> None:
        self.said.append(("removed", step))

    def checkpoint(self, **what: Any) -> None:
        self.said.append(("checkpoint", what["step"], what["validation_reward"]))


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    """A trainer without VERL's machinery: only what this project adds is under test."""
    made: Any = ReportingTrainer.__new__(ReportingTrainer)
    made.run_config = RunConfig.model_validate({"training": {"keep_checkpoints": 2}})
    made.reporter = RecordingReporter()
    made.config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(tmp_path)))
    made.global_steps, made.total_training_steps = 3, 10
    made.train_dataloader = [1, 2]
    made.validation_reward, made.best = None, Best(tmp_path)
    made._deadline, made._stop_file = math.inf, tmp_path / "stop_reason"
    made._spent_file = tmp_path / "budget_spent"
    made.agent_mode_daemon = SimpleNamespace(step=0, clear_data_and_server=lambda: None)
    made.async_rollout_manager = SimpleNamespace(sleep=lambda: None)
    return made


def test_a_step_that_teaches_nothing_is_told_and_the_next_goes_on(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(self: Any, batch: Any) -> dict[str, Any]:
        raise NothingToLearn("none of 64 rollouts was judged")

    monkeypatch.setattr(AgentLightningTrainer, "_train_step", nothing)
    assert trainer._train_step({}) == {"training/skipped": 1.0}
    events = [said for said in trainer.reporter.said if said[0] == "event"]
    assert events == [
        ("event", "step_without_update", {"step": 3, "why": "none of 64 rollouts was judged"})
    ]


def test_a_step_reports_its_phase_and_every_metric(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentLightningTrainer, "_train_step", lambda self, batch: {"a": 1.0})
    trainer._train_step({})
    assert trainer.reporter.said == [
        ("progress", Phase.ROLLOUT, 3, 1),
        ("metrics", 3, {"a": 1.0}),
    ]
    assert trainer.agent_mode_daemon.step == 3


@pytest.fixture
def ending(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer whose steps, validations and checkpoints only say that they were made."""
    trainer.validations, trainer.saved = [], []
    monkeypatch.setattr(AgentLightningTrainer, "_train_step", lambda self, batch: {"a": 1.0})
    monkeypatch.setattr(
        ReportingTrainer, "_validate", lambda self: self.validations.append(self.global_steps)
    )
    monkeypatch.setattr(
        ReportingTrainer, "_save_checkpoint", lambda self: self.saved.append(self.global_steps)
    )
    return trainer


def test_a_step_within_the_budget_goes_on(ending: Any) -> None:
    assert ending._train_step({}) == {"a": 1.0}
    assert (ending.validations, ending.saved) == ([], [])
    assert not ending._stop_file.exists()


@pytest.mark.parametrize("budget", ["budget.max_seconds", "budget.max_user_tokens"])
def test_a_spent_budget_ends_the_run_after_the_step_validated_and_saved(
    ending: Any, budget: str
) -> None:
    if budget == "budget.max_seconds":
        ending._deadline = time.monotonic() - 1
    else:
        ending._spent_file.write_text(budget)
    with pytest.raises(EndedEarly, match=budget):
        ending._train_step({})
    assert (ending.validations, ending.saved) == ([3], [3])
    assert ending._stop_file.read_text() == "budget"


def test_the_last_step_is_not_ended_early(ending: Any) -> None:
    ending._deadline, ending.total_training_steps = time.monotonic() - 1, 3
    ending._train_step({})
    assert ending.validations == []
    assert not ending._stop_file.exists()


def test_a_run_that_ends_early_says_why_and_ends_well(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(self: Any) -> None:
        raise EndedEarly("budget.max_seconds")

    trainer.reporter.close = lambda timeout: True
    monkeypatch.setattr(AgentLightningTrainer, "fit", fit)
    trainer.fit()
    why = {"step": 3, "why": "budget.max_seconds"}
    assert trainer.reporter.said == [("event", "ended_early", why)]


def test_between_rollouts_and_update_the_phase_changes(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: Any, batch: Any) -> dict[str, Any]:
        self.agent_mode_daemon.on_rollouts_ended()
        return {"a": 1.0}

    monkeypatch.setattr(AgentLightningTrainer, "_train_step", step)
    trainer._train_step({})
    phases = [said[1] for said in trainer.reporter.said if said[0] == "progress"]
    assert phases == [Phase.ROLLOUT, Phase.UPDATE]


@pytest.mark.parametrize(("judged", "score"), [(10, 0.5), (9, 0.5), (8, None), (0, None)])
def test_a_validation_that_judged_too_little_has_no_score(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, judged: int, score: float | None
) -> None:
    metrics = {"val/planned": 10, "val/judged": judged, "val/reward": 0.5}
    monkeypatch.setattr(AgentLightningTrainer, "_validate", lambda self: metrics)
    trainer._validate()
    assert trainer.validation_reward == score
    events = [said[1] for said in trainer.reporter.said if said[0] == "event"]
    assert events == ([] if score is not None else ["validation_incomplete"])


def test_a_step_without_validation_has_no_score(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.validation_reward = 0.7
    monkeypatch.setattr(AgentLightningTrainer, "_train_step", lambda self, batch: {})
    trainer._train_step({})
    assert trainer.validation_reward is None


def test_an_attempt_that_resumes_at_the_last_step_trains_no_further(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: Any) -> None:
        self.global_steps = 10

    def fit(self: Any) -> None:
        self._load_checkpoint()
        pytest.fail("it trained on")

    trainer.reporter.close = lambda timeout: True
    monkeypatch.setattr(AgentLightningTrainer, "_load_checkpoint", load)
    monkeypatch.setattr(AgentLightningTrainer, "fit", fit)
    with pytest.raises(NothingLeft):
        trainer._load_checkpoint()
    trainer.fit()
    assert trainer.reporter.said[-1][:2] == ("event", "nothing_left_to_train")


def test_the_best_step_is_remembered_by_the_next_attempt(tmp_path: Path) -> None:
    best = Best(tmp_path)
    assert best.step is None
    best.offer(4, 0.9)
    best.offer(6, 0.6)
    again = Best(tmp_path)
    assert (again.step, again.reward) == (4, 0.9)
    again.offer(8, 0.9)
    assert Best(tmp_path).step == 8


def _save(trainer: Any, step: int, reward: float | None) -> None:
    trainer.global_steps, trainer.validation_reward = step, reward
    folder = Path(trainer.config.trainer.default_local_dir) / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "weights").write_bytes(b"0" * step)
    trainer._save_checkpoint()


def test_the_newest_checkpoints_and_the_best_are_kept(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentLightningTrainer, "_save_checkpoint", lambda self: None)
    for step, reward in ((2, 0.5), (4, 0.9), (6, 0.6), (8, None), (10, 0.7)):
        _save(trainer, step, reward)
    kept = sorted(folder.name for folder in tmp_path.glob("global_step_*"))
    assert kept == ["global_step_10", "global_step_4", "global_step_8"]
    removed = [said[1] for said in trainer.reporter.said if said[0] == "removed"]
    assert removed == [2, 6]
    saved = [said[1:] for said in trainer.reporter.said if said[0] == "checkpoint"]
    assert saved == [(2, 0.5), (4, 0.9), (6, 0.6), (8, None), (10, 0.7)]
