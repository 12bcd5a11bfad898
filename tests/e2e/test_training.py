"""Claims about the main job: it trains, it learns, and what it shows is what happened.

Real API, worker, Ray, VERL, LiteLLM proxy, τ² environment and evaluator; nothing here is a fake.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.learn import Learning, control_faults, faults, learn
from tests.e2e.service import Service, brief

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1000)]

LARGEST_LOG_PROB_DIFFERENCE = 1e-3
NO_ACTION_SCORED = "create_task_1_nl_eval"


@pytest.fixture(scope="module")
def learned(running: Service) -> Learning:
    return learn(running, seed=0)


def _series(client: Service, run_id: str) -> dict[str, list[float]]:
    answer = client.http.get(f"/runs/{run_id}/metrics")
    answer.raise_for_status()
    return {
        series["name"]: [point[1] for point in series["points"]]
        for series in answer.json()["series"]
    }


def test_the_default_run_learns(learned: Learning) -> None:
    print(learned.row())
    assert not faults(learned)


def test_both_curves_stand_beside_their_baselines(learned: Learning) -> None:
    train, validation = learned.run["curves"]["train"], learned.run["curves"]["validation"]
    assert train["baselines"] == {"do_nothing": 0.0, "reference": pytest.approx(7 / 8)}
    assert validation["baselines"] == {
        "do_nothing": pytest.approx(1 / 9),
        "reference": pytest.approx(8 / 9),
    }
    steps = learned.run["progress"]["total_steps"]
    assert [point["step"] for point in train["points"]] == list(range(1, steps + 1))
    assert all(point["rollouts"] == point["judged"] == 64 for point in train["points"])
    assert validation["points"][0]["step"] == 0
    assert validation["points"][-1]["step"] == steps
    assert all(point["coverage"] == 1.0 for point in validation["points"])
    assert validation["trained_on"] == 8
    assert validation["tasks"] == 9


def test_the_lift_is_what_the_policy_adds_to_doing_nothing(learned: Learning) -> None:
    for point in learned.run["curves"]["validation"]["points"]:
        assert point["lift"] == pytest.approx(point["reward_mean"] - 1 / 9)


def test_exactly_the_sampled_tokens_are_trained_with_their_probabilities(
    running: Service, learned: Learning
) -> None:
    series = _series(running, learned.run["id"])
    assert len(series["audit/trained_tokens"]) == learned.run["progress"]["total_steps"]
    assert min(series["audit/trained_tokens"]) > 64
    assert series["audit/trained_tokens_not_sampled"] == [0.0] * len(learned.train)
    assert max(series["audit/log_prob_difference_max"]) < LARGEST_LOG_PROB_DIFFERENCE
    # A reply that is rendered otherwise than it was sampled makes a second sample of its rollout,
    # and what does not fill VERL's mini-batch is dropped: an exception, never the rule.
    assert sum(series["training/n_triplets_dropped_remainder"]) <= 0.01 * 64 * len(learned.train)


def test_verl_was_given_the_rewards_that_are_shown(running: Service, learned: Learning) -> None:
    assert _series(running, learned.run["id"])["training/reward"] == pytest.approx(learned.train)


def test_a_conversation_can_be_read(running: Service, learned: Learning) -> None:
    run_id, steps = learned.run["id"], learned.run["progress"]["total_steps"]
    items = running.all_items(f"/runs/{run_id}/rollouts", mode="validation", step=steps)
    assert len(items) == 9
    solved = next(item for item in items if item["task_id"] == "create_task_1")
    rollout = running.http.get(f"/rollouts/{solved['id']}").json()
    assert rollout["outcome"] == "completed"
    assert rollout["reward"] == 1.0
    assert rollout["baselines"] == {"do_nothing": 0.0, "reference": 1.0}
    assert rollout["tokens"]["assistant_completion"] > 0
    roles = [message["role"] for message in rollout["messages"]]
    assert roles[:4] == ["assistant", "user", "assistant", "tool"]
    call = rollout["messages"][2]["tool_calls"][0]
    assert call["name"] == "create_task"
    assert call["arguments"] == {"user_id": "user_1", "title": "Important Meeting"}


def test_rollouts_are_listed_newest_first(running: Service, learned: Learning) -> None:
    items = running.all_items(f"/runs/{learned.run['id']}/rollouts")
    steps = [item["step"] for item in items]
    assert steps == sorted(steps, reverse=True)


def test_every_rollout_is_there_once(running: Service, learned: Learning) -> None:
    items = running.all_items(f"/runs/{learned.run['id']}/rollouts")
    validations = len(learned.run["curves"]["validation"]["points"])
    assert len(items) == 64 * len(learned.train) + 9 * validations
    assert learned.run["outcomes"] == {"completed": len(items)}


def test_the_best_checkpoint_loads_with_transformers(learned: Learning) -> None:
    best = learned.run["best_checkpoint"]
    folder = Path(best["path"]) / "actor" / "huggingface"
    assert best["validation_reward"] == pytest.approx(
        max(p["reward_mean"] for p in learned.run["curves"]["validation"]["points"])
    )
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "qwen2"
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_the_trained_policys_process_left_nothing_behind(
    running: Service, learned: Learning
) -> None:
    attempt = running.data_dir / "attempts" / learned.run["id"] / "1"
    needle = str(attempt / "claim.json").encode()
    for commands in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = commands.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        assert needle not in command


def test_the_negative_control_does_not_learn(running: Service, learned: Learning) -> None:
    control = learn(running, seed=0, control=True)
    print(control.row())
    assert not control_faults(control)
    events = running.all_items(f"/runs/{control.run['id']}/events")
    ready = next(event for event in events if event["type"] == "policy_ready")
    assert ready["data"]["cached"] is True


def test_a_run_whose_every_rollout_fails_ends_without_an_update(running: Service) -> None:
    config = {
        "rollout": {"n": 2, "timeout_seconds": 0.001, "max_attempts": 1},
        "training": {"max_steps": 1},
    }
    run = running.wait(running.post_run(config=config), 400)
    assert run["status"] == "succeeded", brief(run)
    assert set(run["outcomes"]) == {"timeout"}
    (point,) = run["curves"]["train"]["points"]
    assert point["judged"] == 0
    assert point["reward_mean"] is None
    assert all(p["coverage"] == 0 for p in run["curves"]["validation"]["points"])
    assert _series(running, run["id"])["training/skipped"] == [1.0]


def test_a_runner_that_is_killed_ends_the_run_with_its_cause(running: Service) -> None:
    run_id = running.post_run(config={"rollout": {"n": 4}})
    running.wait_for_phase(run_id, "rollout", 400)
    needle = str(running.data_dir / "attempts" / run_id / "1" / "claim.json")
    trainer = next(
        p for p in psutil.process_iter(["cmdline"]) if needle in (p.info["cmdline"] or [])
    )
    leader = next(p for p in [trainer, *trainer.parents()] if os.getsid(p.pid) == p.pid)
    runners = [p for p in leader.children() if needle in p.cmdline() and p.num_threads() > 1]
    assert len(runners) == 4
    runners[0].kill()
    run = running.wait(run_id, 120)
    assert run["status"] == "failed", brief(run)
    assert run["error"]["code"] == "training_failed"
    assert "ended early, with exit code -9" in run["error"]["message"]
    assert not [p for p in psutil.process_iter(["cmdline"]) if needle in (p.info["cmdline"] or [])]


def test_what_verl_refuses_is_told_in_its_own_words(running: Service) -> None:
    refused: dict[str, Any] = {
        "verl": {"actor_rollout_ref": {"actor": {"loss_agg_mode": "loudest"}}}
    }
    run = running.wait(running.post_run(config=refused), 200)
    assert run["status"] == "failed"
    assert run["error"]["code"] == "config_refused"
    assert "loudest" in run["error"]["message"]


def test_a_model_that_is_not_there_is_named_before_anything_starts(running: Service) -> None:
    run = running.wait(running.post_run(config={"model": {"path": "/no/such/model"}}), 60)
    assert run["status"] == "failed"
    assert run["error"]["code"] == "model_not_found"
    assert "model.path" in run["error"]["message"]
    assert "/no/such/model" in run["error"]["message"]
