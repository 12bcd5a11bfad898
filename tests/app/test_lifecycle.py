"""The table of lawful transitions, and that nothing else is let through."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest
from sqlmodel import col, select

from app.contract import RunStatus
from app.database import Database
from app.lifecycle import TRANSITIONS, Trigger, UnlawfulTransitionError, change
from app.tables import Event, Run

AT = datetime(2026, 1, 1, tzinfo=UTC)
S, T = RunStatus, Trigger


def a_run(status: RunStatus) -> Run:
    return Run(
        id="run_1",
        name="n",
        preset="p",
        tags=[],
        domain="mock",
        engine="cpu",
        status=status.value,
        attempts_allowed=1,
        created_at=AT,
        train_tasks=[],
        validation_tasks=[],
        config={},
        config_overrides={},
        outcomes={},
    )


def test_the_table_is_the_one_of_the_design() -> None:
    by_cancel = {(a, b) for a, trigger, b in TRANSITIONS if trigger is T.CANCEL}
    assert by_cancel == {(S.QUEUED, S.CANCELLED), (S.RUNNING, S.CANCELLING)}
    by_worker = {(a, b) for a, trigger, b in TRANSITIONS if trigger is T.FINISH}
    assert by_worker == {
        (S.RUNNING, S.SUCCEEDED),
        (S.RUNNING, S.FAILED),
        (S.CANCELLING, S.CANCELLED),
        (S.CANCELLING, S.SUCCEEDED),
        (S.CANCELLING, S.FAILED),
    }
    by_resume = {(a, b) for a, trigger, b in TRANSITIONS if trigger is T.RESUME}
    assert by_resume == {(S.FAILED, S.QUEUED), (S.CANCELLED, S.QUEUED)}
    assert not [row for row in TRANSITIONS if row[0] is S.SUCCEEDED]


def test_only_the_table_s_transitions_are_made(database: Database) -> None:
    for before, trigger, after in product(S, T, S):
        with database.read() as session:
            run = a_run(before)
            if (before, trigger, after) in TRANSITIONS:
                change(session, run, trigger, after, AT)
                assert run.status == after
            else:
                with pytest.raises(UnlawfulTransitionError):
                    change(session, run, trigger, after, AT)
                assert run.status == before
                assert run.last_event == 0


def test_each_change_is_an_event_with_the_next_seq(database: Database) -> None:
    with database.write() as session:
        run = a_run(S.QUEUED)
        session.add(run)
        session.flush()
        change(session, run, T.CLAIM, S.RUNNING, AT)
        change(session, run, T.LAPSE, S.QUEUED, AT, "lease_lapsed")
    with database.read() as session:
        events = session.exec(select(Event).order_by(col(Event.seq))).all()
    assert [(event.seq, event.data["by"]) for event in events] == [(1, "claim"), (2, "lapse")]
    assert events[1].data["reason"] == "lease_lapsed"
