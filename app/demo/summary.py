"""What the demo says in the end, and the exit code that it earns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.contract import RunStatus
from app.demo.view import RunView, Validation
from app.demo.words import duration, score

LOG_LINES = 15
"""How much of a failed run's output is shown."""

EDGE_STEPS = 3
"""How many steps at either end of the training curve are averaged."""


@dataclass(frozen=True)
class Verdict:
    """Whether the demo shows what it is there to show, and that in one sentence."""

    learned: bool
    sentence: str


@dataclass(frozen=True)
class Places:
    """Where to find the run again."""

    serve: str
    """The command that starts the API again, at ``url``."""
    url: str
    data_dir: str
    logs: tuple[str, ...]


def before_and_after(run: RunView) -> tuple[Validation | None, Validation | None]:
    """The validation before training and the last one after; ``None`` where there was none."""
    points = sorted(run.validations, key=lambda point: point.step)
    before = points[0] if points and points[0].step == 0 else None
    after = points[-1] if points and points[-1].step > 0 else None
    return before, after


def judge(run: RunView) -> Verdict:
    """Success is a run that succeeded and validates better after training than before."""
    if run.status != RunStatus.SUCCEEDED:
        return Verdict(False, f"The run {run.status}.")
    before, after = before_and_after(run)
    if before is None or after is None or before.reward is None or after.reward is None:
        return Verdict(False, "The run succeeded, but was not validated both before and after.")
    if not (before.complete and after.complete):
        return Verdict(False, "The run succeeded, but too little of a validation was judged.")
    change = f"{score(before.reward)} before training, {score(after.reward)} after"
    if after.reward > before.reward:
        return Verdict(True, f"The run succeeded and the policy learned: validation {change}.")
    return Verdict(False, f"The run succeeded, but the policy did not get better: {change}.")


def summarise(run: RunView, seconds: Mapping[str, float], places: Places) -> list[str]:
    """The closing lines. ``seconds`` are those of each phase."""
    lines = ["", judge(run).sentence, ""]
    if run.error:
        lines += [f"  error       {run.error.code}: {run.error.message}"]
        lines += [f"              | {line}" for line in run.error.log_tail[-LOG_LINES:]]
        lines += [""]
    if run.stop_reason:
        lines += [f"  stopped by  {run.stop_reason}", ""]
    lines += _table(run)
    lines += ["", *_generality(run)]
    checkpoint = "none"
    if run.checkpoint_path:
        checkpoint = (
            f"{run.checkpoint_path} (step {run.checkpoint_step}, "
            f"validation {score(run.checkpoint_reward)})"
        )
    rest = [f"{name} {duration(spent)}" for name, spent in seconds.items()]
    url = f"{places.url}/runs/{run.id}"
    return [
        *lines,
        f"  checkpoint  {checkpoint}",
        f"  run         {run.id}, kept in {places.data_dir}",
        f"  look again  {places.serve}",
        f"              curl {url}",
        f"              curl '{url}/rollouts?limit=5'",
        f"  time        {duration(sum(seconds.values()))}: {', '.join(rest)}",
        *(f"  log         {log}" for log in places.logs),
    ]


def _table(run: RunView) -> list[str]:
    before, after = before_and_after(run)
    check, train = run.validation_baselines, run.train_baselines
    tasks = "all tasks" if run.validation_tasks is None else f"all {run.validation_tasks} tasks"
    rewards = [point.reward for point in run.train if point.reward is not None]
    edges = f"training, mean of first and last {EDGE_STEPS} steps"
    return [
        _row("", "before", "after", "do-nothing", "reference"),
        _row(
            f"validation, {tasks}",
            score(before.reward if before else None),
            score(after.reward if after else None),
            score(check.do_nothing),
            score(check.reference),
        ),
        _row(
            "validation, tasks that do-nothing fails",
            score(before.nontrivial if before else None),
            score(after.nontrivial if after else None),
        ),
        _row(
            edges,
            score(_mean(rewards[:EDGE_STEPS])),
            score(_mean(rewards[-EDGE_STEPS:])),
            score(train.do_nothing),
            score(train.reference),
        ),
    ]


def _row(what: str, before: str, after: str, do_nothing: str = "", reference: str = "") -> str:
    return f"  {what:<41}{before:>7}{after:>8}{do_nothing:>12}{reference:>11}".rstrip()


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _generality(run: RunView) -> list[str]:
    tasks, seen = run.validation_tasks, run.validation_tasks_trained_on
    if tasks is None or seen is None:
        return []
    if seen == tasks:
        return [
            f"  Validated on the tasks it was trained on ({seen} of {tasks}): this proves that the",
            "  loop learns, not that it generalises.",
            "",
        ]
    if seen:
        return [
            f"  {seen} of the {tasks} validation tasks were also trained on: on those the score",
            "  proves that the loop learns, not that it generalises.",
            "",
        ]
    return [f"  None of the {tasks} validation tasks was trained on.", ""]
