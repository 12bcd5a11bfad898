"""Reports: taken once, whole or not at all, and what follows from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from app.database import Database

Json = dict[str, Any]
AT = "2026-01-01T00:00:00Z"


def run_of(client: TestClient, worker: Any) -> Json:
    run: Json = client.get(f"/runs/{worker.run_id}").json()
    return run


def get(client: TestClient, worker: Any, what: str, **params: Any) -> Any:
    answer = client.get(f"/runs/{worker.run_id}/{what}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def plan_of(**over: Any) -> Json:
    """A plan's report."""
    return {
        "kind": "plan",
        "train_tasks": ["a"],
        "validation_tasks": ["a", "b"],
        "total_steps": 5,
        "train_rollouts_per_step": 8,
        "validation_rollouts": 2,
        **over,
    }


def test_a_repeated_report_changes_nothing(client: TestClient, worker: Any) -> None:
    batch = [
        {"id": "metrics-1", "kind": "metrics", "step": 1, "values": {"a": 1}, "non_finite": 1},
        {"id": "rollout-1", **worker.rollout(tokens={"user_prompt": 7, "user_completion": 3})},
        {"id": "log-00001", "kind": "log", "lines": ["one", "two"]},
        {"id": "event-001", "kind": "event", "type": "hello", "data": {}},
        {"id": "progress1", "kind": "progress", "phase": "rollout", "step": 1},
        {"id": "check-001", "kind": "checkpoint", "step": 1, "path": "/c", "size_bytes": 1},
    ]
    assert worker.report(*batch) == {"accepted": 6, "repeated": 0}

    def everything() -> list[Any]:
        parts = ("rollouts", "events", "logs", "metrics", "checkpoints")
        return [run_of(client, worker), *(get(client, worker, part) for part in parts)]

    before = everything()
    assert worker.report(*batch) == {"accepted": 0, "repeated": 6}
    assert worker.report(batch[0], batch[0]) == {"accepted": 0, "repeated": 2}
    assert everything() == before
    assert before[0]["user_tokens"] == {"prompt": 7, "completion": 3, "budget": None}
    assert before[0]["non_finite_metrics"] == 1


def test_the_same_batch_sent_at_once_by_many_is_taken_once(client: TestClient, worker: Any) -> None:
    batch = [{"id": f"line-{i:05}", "kind": "log", "lines": [str(i)]} for i in range(20)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: worker.report(*batch), range(6)))
    assert sum(answer["accepted"] for answer in answers) == 20
    lines = get(client, worker, "logs")["items"]
    assert [line["text"] for line in lines] == [str(i) for i in range(20)]
    assert [line["seq"] for line in lines] == list(range(1, 21))


def test_a_rollout_sent_again_under_another_report_id_is_kept_once(
    client: TestClient, worker: Any
) -> None:
    rollout = worker.rollout(id="ro_same")
    worker.report(rollout)
    worker.report(rollout)
    run = run_of(client, worker)
    assert run["outcomes"] == {"completed": 1}
    assert run["curves"]["train"]["points"][0]["rollouts"] == 1


def test_another_run_s_rollout_cannot_be_overwritten(
    client: TestClient,
    worker: Any,
    queue_run: Callable[..., Json],
    new_worker: Callable[..., Any],
) -> None:
    worker.report(worker.rollout(id="ro_mine", reward=0.0))
    queue_run()
    thief = new_worker()
    thief.claim()
    reports = [{"id": "thief-001", **thief.rollout(id="ro_mine", reward=1.0)}]
    assert thief.call("reports", reports=reports).status_code == 409
    assert client.get("/rollouts/ro_mine").json()["reward"] == 0.0


def test_a_batch_with_one_bad_report_is_refused_whole(client: TestClient, worker: Any) -> None:
    reports = [
        {"id": "good-0001", "kind": "log", "lines": ["x"]},
        {"id": "bad-00001", "kind": "metrics", "step": -1, "values": {}},
    ]
    answer = worker.call("reports", reports=reports)
    assert answer.status_code == 422
    assert [error["path"] for error in answer.json()["errors"]] == ["reports.1.step"]
    assert get(client, worker, "logs")["items"] == []


def test_a_finished_run_takes_no_reports(worker: Any) -> None:
    worker.finish("succeeded")
    report = {"id": "late-0001", "kind": "log", "lines": ["x"]}
    assert worker.call("reports", reports=[report]).status_code == 409


def test_curves_are_made_from_the_rollouts_of_each_step(client: TestClient, worker: Any) -> None:
    worker.report(
        worker.rollout(task_id="a", reward=1.0),
        worker.rollout(task_id="a", reward=0.0),
        worker.rollout(task_id="b", reward=0.0),
    )
    worker.report(
        worker.rollout(task_id="b", reward=0.0),
        worker.rollout(task_id="b", outcome="timeout"),
        worker.rollout(step=2, reward=1.0),
        worker.rollout(task_id="b", outcome="superseded"),
    )
    run = run_of(client, worker)
    first, second = run["curves"]["train"]["points"]
    assert {key: first[key] for key in ("step", "reward_mean", "rollouts", "judged")} == {
        "step": 1,
        "reward_mean": 0.25,
        "rollouts": 5,
        "judged": 4,
    }
    assert first["groups_without_signal"] == 1
    assert (second["step"], second["reward_mean"]) == (2, 1.0)
    assert run["outcomes"] == {"completed": 5, "timeout": 1, "superseded": 1}
    assert run["curves"]["validation"]["points"] == []
    thin = client.get(f"/runs/{worker.run_id}", params={"max_points": 1}).json()
    assert [point["step"] for point in thin["curves"]["train"]["points"]] == [2]


def test_validation_is_shown_against_its_baselines_even_when_they_come_late(
    client: TestClient, worker: Any
) -> None:
    plan = {
        "kind": "plan",
        "train_tasks": ["a"],
        "validation_tasks": ["a", "b"],
        "total_steps": 5,
        "train_rollouts_per_step": 8,
        "validation_rollouts": 2,
    }
    validation = {"mode": "validation", "step": 0}
    worker.report(
        worker.rollout(task_id="a", reward=1.0, **validation),
        worker.rollout(task_id="b", reward=1.0, **validation),
    )
    before = run_of(client, worker)["curves"]["validation"]
    assert before["points"][0]["lift"] is None
    assert before["baselines"] == {"do_nothing": None, "reference": None}
    tasks = [
        {"task_id": "a", "do_nothing": 0.0, "reference": 1.0},
        {"task_id": "b", "do_nothing": 1.0, "reference": None},
    ]
    worker.report(plan, {"kind": "baselines", "tasks": tasks})
    run = run_of(client, worker)
    validation_curve = run["curves"]["validation"]
    point = validation_curve["points"][0]
    assert (point["lift"], point["reward_mean_nontrivial"]) == (0.5, 1.0)
    assert (point["planned"], point["coverage"], point["pass_hat"]) == (2, 1.0, {"1": 1.0})
    assert validation_curve["baselines"] == {"do_nothing": 0.5, "reference": 1.0}
    assert (validation_curve["tasks"], validation_curve["trained_on"]) == (2, 1)
    assert run["curves"]["train"]["baselines"] == {"do_nothing": 0.0, "reference": 1.0}
    assert run["progress"]["total_steps"] == 5


def test_a_step_done_again_by_the_next_attempt_replaces_its_point(
    client: TestClient, worker: Any
) -> None:
    worker.report(
        worker.rollout(reward=0.0),
        worker.rollout(reward=0.0),
        {"kind": "metrics", "step": 1, "values": {"loss": 1.0}},
    )
    worker.finish("handed_back")
    worker.claim()
    worker.report(
        worker.rollout(reward=1.0), {"kind": "metrics", "step": 1, "values": {"loss": 2.0}}
    )
    points = run_of(client, worker)["curves"]["train"]["points"]
    assert [(point["rollouts"], point["reward_mean"]) for point in points] == [(1, 1.0)]
    [series] = get(client, worker, "metrics")["series"]
    assert [point[:2] for point in series["points"]] == [[1, 2.0]]


def test_progress_moves_phase_step_and_eta(client: TestClient, worker: Any) -> None:
    def progress(step: int, phase: str = "rollout", second: int = 0) -> Json:
        at = f"2026-01-01T00:00:{second:02}Z"
        return {"kind": "progress", "phase": phase, "step": step, "epoch": 1, "at": at}

    worker.report(progress(0, "validating"))
    assert run_of(client, worker)["progress"]["eta_seconds"] is None
    worker.report(progress(1, second=1))
    worker.report(progress(2, second=2))
    run = run_of(client, worker)
    assert run["phase"] == "rollout"
    assert (run["progress"]["step"], run["progress"]["epoch"]) == (2, 1)
    assert run["progress"]["eta_seconds"] >= 0
    worker.report(progress(1, "update", second=1))
    assert run_of(client, worker)["phase"] == "rollout", "a late report must not undo a newer one"
    events = get(client, worker, "events")["items"]
    assert [e["data"]["step"] for e in events if e["type"] == "phase"] == [0, 1, 2]


def test_events_and_logs_are_continued_from_a_seq(client: TestClient, worker: Any) -> None:
    worker.report({"kind": "log", "lines": [str(i) for i in range(1, 11)]})
    tail = get(client, worker, "logs", limit=3)
    assert [line["text"] for line in tail["items"]] == ["8", "9", "10"]
    page = get(client, worker, "logs", cursor=0, limit=4)
    assert [line["text"] for line in page["items"]] == ["1", "2", "3", "4"]
    rest = get(client, worker, "logs", cursor=page["next_cursor"])
    assert [line["seq"] for line in rest["items"]] == list(range(5, 11))
    assert rest["next_cursor"] is None
    events = get(client, worker, "events", limit=1)
    assert events["next_cursor"] == "1"
    assert [e["seq"] for e in get(client, worker, "events", cursor=1)["items"]] == [2]


def test_metrics_are_found_by_name_and_step_and_exported(client: TestClient, worker: Any) -> None:
    for step in (1, 2, 3):
        values = {"actor/loss": step / 2, "critic/score": 1.0}
        worker.report({"kind": "metrics", "step": step, "values": values, "at": AT})
    found = get(client, worker, "metrics", name="actor/loss", from_step=2, to_step=3)
    assert found["series"] == [
        {"name": "actor/loss", "points": [[2, 1.0, AT], [3, 1.5, AT]]},
    ]
    assert len(get(client, worker, "metrics")["series"]) == 2
    answer = client.get(f"/runs/{worker.run_id}/metrics", headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    lines = answer.text.splitlines()
    assert lines[0] == "name,step,value,at"
    assert lines[1] == "actor/loss,1,0.5,2026-01-01T00:00:00+00:00"
    assert len(lines) == 7


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    "report",
    [
        '{"id": "bad-00001", "kind": "metrics", "step": 1, "values": {"x": $}}',
        '{"id": "bad-00001", "kind": "event", "type": "t", "data": {"x": [$]}}',
    ],
)
def test_numbers_that_are_not_finite_are_refused(worker: Any, report: str, literal: str) -> None:
    report = report.replace("$", literal)
    body = f'{{"lease_token": "{worker.lease_token}", "reports": [{report}]}}'
    url = f"/runs/{worker.run_id}/attempts/1/reports"
    answer = worker.client.post(url, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "valid JSON" in answer.json()["errors"][0]["message"]


def test_numbers_that_no_curve_or_counter_can_hold_are_refused_and_nothing_is_kept(
    client: TestClient, worker: Any
) -> None:
    huge = [worker.rollout(reward=1.7e308), worker.rollout(reward=1.7e308)]
    tokens = [worker.rollout(tokens={"user_prompt": 2**62}) for _ in range(2)]
    for number, pair in enumerate((huge, tokens)):
        named = [{"id": f"huge-{number}-{i}-x", **report} for i, report in enumerate(pair)]
        assert worker.call("reports", reports=named).status_code == 422
    run = run_of(client, worker)
    assert (run["outcomes"], run["curves"]["train"]["points"]) == ({}, [])
    assert worker.report(worker.rollout()) == {"accepted": 1, "repeated": 0}


def test_a_large_batch_is_parsed_like_a_small_one(client: TestClient, worker: Any) -> None:
    lines = ["x" * 100] * 1500
    worker.report({"kind": "log", "lines": lines}, worker.rollout(id="ro_1"))
    assert run_of(client, worker)["outcomes"] == {"completed": 1}


def test_non_finite_values_that_were_kept_out_are_counted(client: TestClient, worker: Any) -> None:
    worker.report({"kind": "metrics", "step": 1, "values": {"ok": 1.0}, "non_finite": 3})
    assert get(client, worker, "metrics")["non_finite"] == 3


def test_text_that_is_not_unicode_comes_back_repaired(client: TestClient, worker: Any) -> None:
    said = "a\ud800b \x00 \x1b[31m <b>"
    messages = [
        {"role": "assistant", "content": said, "tool_calls": None},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "name": "\udfff", "arguments": {"\ud801": "\ud802"}}],
        },
    ]
    reports = [
        {"id": "broken-01", **worker.rollout(id="ro_broken", messages=messages)},
        {"id": "whole-001", **worker.rollout(id="ro_whole", messages=[])},
        {"id": "log-00001", "kind": "log", "lines": ["\udc80"]},
    ]
    body = json.dumps({"lease_token": worker.lease_token, "reports": reports})
    url = f"/runs/{worker.run_id}/attempts/1/reports"
    answer = client.post(url, content=body, headers={"Content-Type": "application/json"})
    assert answer.json() == {"accepted": 3, "repeated": 0}
    rollout = client.get("/rollouts/ro_broken").json()
    assert rollout["text_repaired"] is True
    assert rollout["messages"][0]["content"] == "a\ufffdb \x00 \x1b[31m <b>"
    [call] = rollout["messages"][1]["tool_calls"]
    assert (call["name"], call["arguments"]) == ("\ufffd", {"\ufffd": "\ufffd"})
    assert client.get("/rollouts/ro_whole").json()["text_repaired"] is False
    assert get(client, worker, "logs")["items"][0]["text"] == "\ufffd"


def test_rollouts_are_filtered_and_paged(client: TestClient, worker: Any) -> None:
    worker.report(
        worker.rollout(id="ro_1", task_id="a", reward=0.0),
        worker.rollout(id="ro_2", task_id="a", step=2),
        worker.rollout(id="ro_3", task_id="b", mode="validation", step=0),
        worker.rollout(id="ro_4", task_id="b", outcome="timeout"),
    )

    def ids(**params: Any) -> list[str]:
        return [item["id"] for item in get(client, worker, "rollouts", **params)["items"]]

    assert ids() == ["ro_4", "ro_3", "ro_2", "ro_1"]
    assert ids(step=1) == ["ro_4", "ro_1"]
    assert ids(mode="validation") == ["ro_3"]
    assert ids(task_id="a", min_reward=0.5) == ["ro_2"]
    assert ids(max_reward=0.5) == ["ro_1"]
    assert ids(outcome="timeout") == ["ro_4"]
    page = get(client, worker, "rollouts", limit=3)
    assert page["next_cursor"] == "ro_2"
    assert ids(cursor="ro_2") == ["ro_1"]
    assert "messages" not in page["items"][0]
    missing = client.get(f"/runs/{worker.run_id}/rollouts", params={"min_reward": "nan"})
    assert missing.status_code == 422


def test_a_rollout_belongs_to_the_run_whose_lease_reported_it(
    client: TestClient, worker: Any
) -> None:
    worker.report(worker.rollout(id="ro_1", run_id="run_other", attempt=9))
    rollout = client.get("/rollouts/ro_1").json()
    assert (rollout["run_id"], rollout["attempt"]) == (worker.run_id, 1)


def test_the_best_checkpoint_has_the_best_validation(client: TestClient, worker: Any) -> None:
    def checkpoint(step: int, **fields: Any) -> Json:
        return {"kind": "checkpoint", "step": step, "path": f"/{step}", "size_bytes": 1, **fields}

    worker.report(checkpoint(1), plan_of(validation_rollouts=1))
    assert run_of(client, worker)["best_checkpoint"] is None
    worker.report(
        checkpoint(2, validation_reward=0.9),
        checkpoint(3, validation_reward=0.2),
        worker.rollout(mode="validation", step=4, reward=1.0),
        checkpoint(4),
    )
    best = run_of(client, worker)["best_checkpoint"]
    assert best == {"step": 4, "validation_reward": 1.0, "path": "/4"}
    listed = client.get("/runs").json()["items"][0]
    assert listed["best_checkpoint"] == best
    assert [c["step"] for c in get(client, worker, "checkpoints")["items"]] == [4, 3, 2, 1]


def test_a_validation_of_which_too_little_is_judged_is_not_complete_and_makes_no_checkpoint_best(
    client: TestClient, worker: Any
) -> None:
    validation = {"mode": "validation", "step": 1}
    failed = {"outcome": "user_error", **validation}

    def point() -> Json:
        found: Json = run_of(client, worker)["curves"]["validation"]["points"][0]
        return found

    # The default asks for 0.9 of what was planned.
    worker.report(
        plan_of(validation_rollouts=10),
        *[worker.rollout(**validation) for _ in range(8)],
        worker.rollout(**failed),
        {"kind": "checkpoint", "step": 1, "path": "/1", "size_bytes": 1},
    )
    assert (point()["coverage"], point()["complete"], point()["reward_mean"]) == (0.8, False, 1.0)
    assert run_of(client, worker)["best_checkpoint"] is None
    worker.report(worker.rollout(**validation))
    assert (point()["coverage"], point()["complete"]) == (0.9, True)
    assert run_of(client, worker)["best_checkpoint"]["step"] == 1


def test_a_checkpoint_that_was_removed_is_neither_listed_nor_best_nor_continued_from(
    client: TestClient, worker: Any
) -> None:
    def checkpoint(step: int, reward: float) -> Json:
        fields = {"path": f"/{step}", "size_bytes": 1, "validation_reward": reward}
        return {"kind": "checkpoint", "step": step, **fields}

    worker.report(checkpoint(1, 0.5), checkpoint(2, 0.9))
    worker.finish("handed_back")
    claim = worker.claim()
    assert claim["resume_from"] == "/2"
    removed = {"id": "removed-2", "kind": "checkpoint_removed", "step": 2}
    worker.report(removed, {"kind": "checkpoint_removed", "step": 7})
    assert [c["step"] for c in get(client, worker, "checkpoints")["items"]] == [1]
    best = run_of(client, worker)["best_checkpoint"]
    assert best == {"step": 1, "validation_reward": 0.5, "path": "/1"}
    worker.report(checkpoint(2, 0.1))
    assert worker.report(removed) == {"accepted": 0, "repeated": 1}
    assert [c["step"] for c in get(client, worker, "checkpoints")["items"]] == [2, 1]
    worker.report({"kind": "checkpoint_removed", "step": 2})
    worker.finish("handed_back")
    assert worker.claim()["resume_from"] == "/1"


def test_the_user_tokens_of_a_try_that_was_given_up_count_too(
    client: TestClient, worker: Any
) -> None:
    tokens = {"assistant_prompt": 100, "user_prompt": 7, "user_completion": 3}
    retried = {"id": "retried-1", "kind": "event", "type": "rollout_retried"}
    worker.report({**retried, "data": {"task_id": "a", "tokens": tokens}})
    worker.report({**retried, "data": {"task_id": "a", "tokens": tokens}})
    worker.report({"kind": "event", "type": "rollout_retried", "data": {"task_id": "a"}})
    worker.report({"kind": "event", "type": "other", "data": {"tokens": 3}})
    worker.report(worker.rollout(tokens={"user_prompt": 10, "user_completion": 20}))
    used = run_of(client, worker)["user_tokens"]
    assert (used["prompt"], used["completion"]) == (17, 23)
    wrong = {**retried, "id": "retried-2", "data": {"tokens": {"user_prompts": 1}}}
    assert worker.call("reports", reports=[wrong]).status_code == 422


def test_a_step_shows_how_many_rollouts_were_planned_once_there_is_a_plan(
    client: TestClient, worker: Any
) -> None:
    def points() -> list[tuple[int, int, int | None]]:
        found = run_of(client, worker)["curves"]["train"]["points"]
        return [(point["step"], point["rollouts"], point["planned"]) for point in found]

    worker.report(worker.rollout(step=1), worker.rollout(step=1))
    assert points() == [(1, 2, None)]
    plan = {
        "kind": "plan",
        "train_tasks": ["a"],
        "validation_tasks": ["b"],
        "total_steps": 5,
        "train_rollouts_per_step": 8,
        "validation_rollouts": 2,
    }
    worker.report(plan, worker.rollout(step=2))
    assert points() == [(1, 2, 8), (2, 1, 8)]


def test_a_tasks_baselines_are_known_from_the_newest_run(client: TestClient, worker: Any) -> None:
    task = {"task_id": "create_task_1", "do_nothing": 0.0, "reference": 1.0}
    worker.report({"kind": "baselines", "tasks": [task]}, worker.rollout(id="ro_1"))
    known = {"do_nothing": 0.0, "reference": 1.0}
    assert client.get("/tasks/mock/create_task_1").json()["baselines"] == known
    assert client.get("/tasks?domain=mock").json()["items"][0]["baselines"] == known
    assert client.get("/rollouts/ro_1").json()["baselines"] == known


def test_values_and_lines_are_inserted_by_one_statement_each(
    worker: Any, database: Database
) -> None:
    inserts: Counter[str] = Counter()

    def count(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("INSERT INTO"):
            inserts[statement.split()[2]] += 1

    event.listen(database.engine, "before_cursor_execute", count)
    values = {f"m{i}": 1.0 for i in range(3000)}
    worker.report(
        {"kind": "metrics", "step": 1, "values": values},
        {"kind": "log", "lines": ["x"] * 3000},
    )
    assert (inserts["metric_point"], inserts["log_line"]) == (1, 1)
