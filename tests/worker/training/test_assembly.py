"""Claims about how a run is put together from its config."""

from __future__ import annotations

from app.contract import TaskBaseline
from worker.training.assembly import _nontrivial


def test_only_tasks_that_doing_nothing_does_not_solve_are_nontrivial() -> None:
    known = [
        TaskBaseline(task_id="solved", do_nothing=1.0, reference=1.0),
        TaskBaseline(task_id="failed", do_nothing=0.0, reference=1.0),
        TaskBaseline(task_id="unknown", do_nothing=None, reference=None),
    ]
    assert _nontrivial(["failed", "solved", "unknown", "new"], known) == [
        "failed",
        "unknown",
        "new",
    ]
