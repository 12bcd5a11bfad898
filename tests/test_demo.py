"""What the demo says, from recorded run documents."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from rich.console import Console

from app.demo.run import serve_command
from app.demo.screen import Screen, printable, standing
from app.demo.story import Story
from app.demo.summary import Places, judge, summarise
from app.demo.view import RunView, read_run
from app.demo.words import duration, score, sparkline
from app.settings import Settings

PLACES = Places(
    "TAUTRAIN_PORT=9 tautrain serve",
    "http://127.0.0.1:9",
    "/somewhere/data",
    ("/somewhere/data/demo/worker.log",),
)

# --- recorded documents -----------------------------------------------------------------------


def train_point(step: int, reward: float | None, judged: int = 64) -> dict[str, Any]:
    return {"step": step, "reward_mean": reward, "rollouts": 64, "judged": judged}


def validation_point(step: int, reward: float | None, nontrivial: float | None) -> dict[str, Any]:
    return {
        "step": step,
        "reward_mean": reward,
        "reward_mean_nontrivial": nontrivial,
        "planned": 5,
        "judged": 5,
        "coverage": 1.0,
        "complete": True,
    }


def document(status: str = "running", phase: str | None = None, **changes: Any) -> dict[str, Any]:
    """``GET /runs/{id}`` of a run that was just claimed."""
    base: dict[str, Any] = {
        "id": "run_1",
        "name": "demo",
        "preset": "tiny-cpu",
        "status": status,
        "phase": phase,
        "attempt": 1,
        "progress": {"epoch": 0, "step": 0, "total_steps": None, "eta_seconds": None},
        "error": None,
        "curves": {
            "train": {"points": [], "baselines": {"do_nothing": None, "reference": None}},
            "validation": {
                "points": [],
                "baselines": {"do_nothing": None, "reference": None},
                "tasks": 0,
                "trained_on": 0,
            },
        },
        "outcomes": {},
        "best_checkpoint": None,
    }
    return {**base, **changes}


def learned() -> dict[str, Any]:
    """A run that went from 0.4 to 1.0 over its own training tasks."""
    ended = document("succeeded", None)
    ended["progress"] = {"epoch": 4, "step": 4, "total_steps": 4, "eta_seconds": 0}
    ended["curves"]["train"] = {
        "points": [
            train_point(1, 0.25),
            train_point(2, 0.5),
            train_point(3, 0.75, judged=62),
            train_point(4, 1.0),
        ],
        "baselines": {"do_nothing": 0.2, "reference": 0.8},
    }
    ended["curves"]["validation"] = {
        "points": [validation_point(0, 0.4, 0.25), validation_point(4, 1.0, 0.95)],
        "baselines": {"do_nothing": 0.2, "reference": 0.9},
        "tasks": 5,
        "trained_on": 5,
    }
    ended["outcomes"] = {"completed": 264, "infrastructure_error": 2}
    ended["best_checkpoint"] = {"step": 4, "validation_reward": 1.0, "path": "/somewhere/step_4"}
    return ended


def validations(*points: dict[str, Any]) -> RunView:
    ended = learned()
    ended["curves"]["validation"]["points"] = list(points)
    return read_run(ended)


def summary(recorded: dict[str, Any]) -> str:
    return "\n".join(summarise(read_run(recorded), {"starting": 20.0, "rollout": 100.0}, PLACES))


# --- the verdict and the summary --------------------------------------------------------------


def test_a_run_that_got_better_has_learned() -> None:
    assert judge(read_run(learned())).learned


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_run_that_did_not_succeed_has_not_learned(status: str) -> None:
    assert not judge(read_run(learned() | {"status": status})).learned


@pytest.mark.parametrize(
    "run",
    [
        validations(validation_point(0, 0.4, 0.2), validation_point(4, 0.4, 0.2)),
        validations(validation_point(0, 0.4, 0.2), validation_point(4, 0.2, 0.0)),
        validations(validation_point(0, 0.4, 0.2)),
        validations(validation_point(4, 1.0, 1.0)),
        validations(validation_point(0, None, None), validation_point(4, 1.0, 1.0)),
        validations(validation_point(0, 0.4, 0.2), validation_point(4, None, None)),
        validations(),
    ],
    ids=["equal", "worse", "no after", "no before", "unknown before", "unknown after", "none"],
)
def test_a_run_that_cannot_show_a_gain_has_not_learned(run: RunView) -> None:
    assert not judge(run).learned


def test_the_last_validation_counts_and_not_the_best() -> None:
    run = validations(
        validation_point(0, 0.4, 0.2), validation_point(2, 1.0, 1.0), validation_point(4, 0.3, 0.1)
    )
    assert not judge(run).learned
    assert "0.40 before training, 0.30 after" in judge(run).sentence


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows: the words before two spaces, and the figures after."""
    parts = [line.strip().split("  ", 1) for line in text.splitlines() if line.startswith("  ")]
    return {part[0]: part[1].split() for part in parts if len(part) == 2}


def test_the_summary_has_the_figures_of_the_document() -> None:
    table = rows(summary(learned()))
    assert table["validation, all 5 tasks"] == ["0.40", "1.00", "0.20", "0.90"]
    assert table["validation, tasks that do-nothing fails"] == ["0.25", "0.95"]
    first_three, last_three = "0.50", "0.75"
    training = table["training, mean of first and last 3 steps"]
    assert training == [first_three, last_three, "0.20", "0.80"]


def test_the_summary_says_where_everything_is() -> None:
    text = summary(learned())
    assert "/somewhere/step_4 (step 4, validation 1.00)" in text
    assert "curl http://127.0.0.1:9/runs/run_1\n" in text
    assert "look again  TAUTRAIN_PORT=9 tautrain serve\n" in text
    assert "/somewhere/data/demo/worker.log" in text
    assert "2 min 00 s: starting 20 s, rollout 1 min 40 s" in text


def test_the_command_to_look_again_serves_the_port_of_the_demo() -> None:
    settings = Settings(port=9)
    assert serve_command(settings, 9).endswith("tautrain serve")
    assert "TAUTRAIN_PORT" not in serve_command(settings, 9)
    assert serve_command(settings, 10).startswith("TAUTRAIN_PORT=10 ")


def test_a_validation_on_training_tasks_is_called_that() -> None:
    text = " ".join(summary(learned()).split())
    assert (
        "Validated on the tasks it was trained on (5 of 5): "
        "this proves that the loop learns, not that it generalises." in text
    )


@pytest.mark.parametrize(
    ("seen", "words"),
    [(2, "2 of the 5 validation tasks were also trained on"), (0, "None of the 5")],
)
def test_other_splits_are_told_apart(seen: int, words: str) -> None:
    recorded = learned()
    recorded["curves"]["validation"]["trained_on"] = seen
    assert words in summary(recorded)
    assert "Validated on the tasks it was trained on" not in summary(recorded)


def test_a_failure_is_shown_with_code_message_and_last_lines() -> None:
    error = {
        "code": "out_of_memory",
        "message": "killed",
        "log_tail": [f"line {n}" for n in range(99)],
    }
    text = summary(document("failed", None, error=error))
    assert "out_of_memory: killed" in text
    assert "| line 98" in text
    assert "| line 2\n" not in text
    assert "checkpoint  none" in text


def test_unknown_figures_are_dashes_and_never_zeros() -> None:
    assert rows(summary(document("failed")))["validation, all 0 tasks"] == ["-", "-", "-", "-"]


# --- the lines that stay ----------------------------------------------------------------------


def told(story: Story, recorded: dict[str, Any], elapsed: float) -> list[str]:
    return [line[13:] for line in story.lines(read_run(recorded), elapsed)]


def test_the_story_tells_each_change_once() -> None:
    story = Story()
    assert told(story, document("queued", attempt=0), 0) == ["queued: waiting for the worker"]
    starting = document("running", "starting")
    first = told(story, starting, 1)
    assert first[0] == "claimed by the worker"
    assert first[1].startswith("starting the trainer")
    assert told(story, starting, 2) == []
    assert len(told(story, document("running", "warm_start"), 3)) == 1


def test_a_step_is_told_when_it_is_over_and_its_rollouts_are_in() -> None:
    story = Story()
    now = document("running", "rollout", progress={"step": 1, "total_steps": 4})
    now["curves"]["train"]["points"] = [train_point(1, 0.1)]
    told(story, now, 0)
    assert told(story, now, 5) == []
    late = copy.deepcopy(now) | {"phase": "update"}
    late["curves"]["train"]["points"] = [train_point(1, 0.25, judged=63)]
    assert told(story, late, 6) == []
    assert told(story, late, 8) == [
        "step 1 of 4: training reward 0.25 over 63 judged of 64 rollouts"
    ]
    assert told(story, late, 10) == []


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ({"rollouts": 60, "judged": 60, "planned": 64}, "60 judged of 64 rollouts"),
        ({"rollouts": 64, "judged": 64, "planned": 64}, "64 rollouts"),
        ({"rollouts": 60, "judged": 60, "planned": None}, "60 rollouts"),
    ],
)
def test_a_step_whose_rollouts_are_partly_lost_does_not_look_complete(
    point: dict[str, Any], count: str
) -> None:
    recorded = document("succeeded", progress={"step": 1, "total_steps": 4})
    recorded["curves"]["train"]["points"] = [train_point(1, 0.25) | point]
    lines = told(Story(), recorded, 9)
    assert f"step 1 of 4: training reward 0.25 over {count}" in lines


def test_a_validation_is_told_with_its_coverage_and_baselines() -> None:
    story = Story()
    assert told(story, learned(), 9)[-1] == (
        "validation after step 4: 1.00 (5 of 5 judged), on tasks that do-nothing fails 0.95; "
        "do-nothing 0.20, reference 0.90"
    )


def test_a_validation_of_which_too_little_was_judged_is_told_and_is_no_success() -> None:
    recorded = learned()
    recorded["curves"]["validation"]["points"][-1] |= {"judged": 3, "complete": False}
    assert "1.00 (3 of 5 judged: incomplete), on tasks" in told(Story(), recorded, 9)[-1]
    verdict = judge(read_run(recorded))
    assert (verdict.learned, "too little" in verdict.sentence) == (False, True)


def test_what_is_still_open_is_told_when_the_run_ends_in_order() -> None:
    lines = told(Story(), learned(), 9)
    kinds = [line.split(":")[0] for line in lines]
    assert kinds == [
        "run succeeded",
        "validation before training",
        *(f"step {n} of 4" for n in (1, 2, 3, 4)),
        "validation after step 4",
    ]


def test_a_new_attempt_is_told() -> None:
    story = Story()
    told(story, document("running", "rollout"), 0)
    assert told(story, document("running", "starting", attempt=2), 1)[0].startswith("attempt 2")


def test_the_seconds_of_each_phase_add_up() -> None:
    story = Story()
    for elapsed, recorded in (
        (0, document("queued")),
        (2, document("running", "starting")),
        (12, document("running", "rollout")),
        (15, document("running", "update")),
        (18, document("running", "rollout")),
        (20, learned()),
    ):
        story.lines(read_run(recorded), elapsed)
    assert story.seconds == {"queued": 2, "starting": 10, "rollout": 5, "update": 3}


# --- the screen -------------------------------------------------------------------------------


def shown(terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, highlight=False)
    with Screen(console) as screen:
        screen.say(["a line that stays"])
        screen.show(read_run(learned() | {"status": "running", "phase": "rollout"}), 30)
    return out.getvalue()


def test_a_terminal_shows_bar_curves_and_counts() -> None:
    text = shown(terminal=True)
    for part in (
        "a line that stays",
        "266 rollouts",
        "2 not judged",
        "0.25 to 1.00",
        "0.40 to 1.00",
    ):
        assert part in text


def test_without_a_terminal_there_are_only_lines() -> None:
    text = shown(terminal=False)
    assert "\x1b" not in text
    assert "rollout, step 4 of 4, 266 rollouts, 2 not judged" in text


def test_text_of_a_run_cannot_command_the_terminal() -> None:
    assert "\x1b" not in printable("\x1b[2J[bold]x")
    assert printable("[bold] τ² is text") == "[bold] τ² is text"


def test_numbers_times_and_curves() -> None:
    assert (score(None), score(0.0), score(1)) == ("-", "0.00", "1.00")
    assert (duration(8.4), duration(59.6), duration(185)) == ("8 s", "1 min 00 s", "3 min 05 s")
    assert sparkline([0.0, None, 0.5, 1.0, 7.0]) == "▁ ▅██"
    assert sparkline([0.0, 1.0], unicode=False) == "07"
    assert standing(read_run(document("queued"))) == "queued, 0 rollouts"
