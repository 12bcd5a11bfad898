"""The reporter: nothing is lost, nothing is counted twice, and training never waits."""

import errno
import gc
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from app.contract import (
    Domain,
    MessageDoc,
    Outcome,
    Phase,
    RolloutDoc,
    RolloutMode,
    TaskBaseline,
    ToolCallDoc,
)
from worker import outbox, spool
from worker.client import ApiClient, LeaseLost
from worker.reporter import Reporter, ReporterConfig, ship_leftovers
from worker.spool import SpoolReader, SpoolWriter


@pytest.fixture
def config(fake_api, tmp_path):
    return ReporterConfig(fake_api.url, "run_1", 1, "token", str(tmp_path / "spool"))


@pytest.fixture
def reporter(config):
    reporter = Reporter(config)
    yield reporter
    reporter.close(timeout=0)


def spool_files(config):
    return sorted(Path(config.spool_dir).glob("*.jsonl"))


def drain(config, fake_api, timeout=5.0):
    with ApiClient(fake_api.url, retry_seconds=0) as client:
        return ship_leftovers(Path(config.spool_dir), client, "run_1", 1, "token", timeout=timeout)


def numbers(fake_api):
    return [event.data["n"] for event in fake_api.of_kind("event")]


class OneElementTensor:
    """Quacks like a tensor on some device."""

    def __init__(self, *values):
        self.values = values

    def item(self):
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]


def test_what_is_not_finite_is_stripped_and_counted(fake_api, reporter):
    reporter.metrics(
        3,
        {
            "float": 0.5,
            "int": 2,
            "numpy32": np.float32(0.25),
            "numpy_int": np.int64(7),
            "one_element": np.array([4.0]),
            "tensor": OneElementTensor(1.5),
            "nan": math.nan,
            "inf": np.float64("-inf"),
            "text": "5.0",
            "none": None,
            "many": np.zeros(3),
            "two_elements": OneElementTensor(1, 2),
            "list": [1.0],
        },
    )
    assert reporter.flush()
    (report,) = fake_api.of_kind("metrics")
    assert report.step == 3
    assert report.non_finite == 2
    assert report.values == {
        "float": 0.5,
        "int": 2.0,
        "numpy32": 0.25,
        "numpy_int": 7.0,
        "one_element": 4.0,
        "tensor": 1.5,
    }


def test_each_kind_of_report_arrives_as_the_contract_has_it(fake_api, reporter):
    reporter.progress(Phase.ROLLOUT, step=2, epoch=1, note="n")
    reporter.plan(
        train_tasks=["a"],
        validation_tasks=["b"],
        total_steps=9,
        train_rollouts_per_step=64,
        validation_rollouts=4,
    )
    reporter.baselines([TaskBaseline(task_id="a", do_nothing=0.0, reference=1.0)])
    reporter.checkpoint(step=4, path="/c", size_bytes=10, validation_reward=0.9)
    reporter.log(["line"])
    reporter.event("hello", {"path": Path("/x"), 5: "key"})
    assert reporter.flush()
    kinds = ["progress", "plan", "baselines", "checkpoint", "log", "event"]
    assert [report.kind for report in fake_api.reports.values()] == kinds
    assert fake_api.of_kind("event")[0].data == {"path": "/x", "5": "key"}


def test_text_that_is_not_unicode_is_repaired_and_arrives(fake_api, reporter):
    call = ToolCallDoc(id="c", name="f", arguments={"a\udc00": ["\ud800b"]})
    rollout = RolloutDoc(
        id="ro_1",
        mode=RolloutMode.TRAIN,
        domain=Domain.MOCK,
        task_id="t",
        outcome=Outcome.COMPLETED,
        reward=1.0,
        messages=[MessageDoc(role="assistant", content="x\ud83dy\x00 😀", tool_calls=[call])],
    )
    reporter.rollout(rollout)
    assert reporter.flush()
    message = fake_api.of_kind("rollout")[0].rollout.messages[0]
    assert message.content == "x\ufffdy\x00 😀"
    assert message.tool_calls[0].arguments == {"a\ufffd": ["\ufffdb"]}


def test_the_first_report_arrives_within_a_second(fake_api, reporter):
    reporter.event("first")
    fake_api.wait_for(lambda: fake_api.reports, timeout=1.0)


def test_order_is_kept_over_many_batches(fake_api, reporter, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_REPORTS_PER_BATCH", 40)
    for n in range(300):
        reporter.event("count", {"n": n})
    assert reporter.flush()
    assert numbers(fake_api) == list(range(300))
    assert fake_api.repeated == 0
    assert max(fake_api.batches) <= 40


def test_a_batch_is_bounded_in_bytes_and_a_larger_report_goes_alone(
    fake_api, reporter, monkeypatch
):
    monkeypatch.setattr(outbox, "MAX_BATCH_BYTES", 10_000)
    fake_api.fail_next = [503]
    for size in (10, 50_000, 10, 4_000, 4_000, 4_000):
        reporter.log(["x" * size])
    assert reporter.flush()
    assert sum(fake_api.batches) == 6
    assert [len(line) for line in fake_api.lines()] == [10, 50_000, 10, 4_000, 4_000, 4_000]
    assert max(fake_api.batches) < 4


def test_training_does_not_wait_for_an_api_that_is_away_and_all_arrives_later(fake_api, reporter):
    fake_api.stop()
    started = time.monotonic()
    for n in range(500):
        reporter.event("count", {"n": n})
    assert time.monotonic() - started < 3.0
    assert not reporter.flush(timeout=0.1)
    fake_api.start()
    assert reporter.flush(timeout=10)
    assert numbers(fake_api) == list(range(500))


def test_a_report_whose_answer_was_lost_is_sent_again_and_changes_nothing(
    fake_api, reporter, monkeypatch
):
    answer = fake_api.answer
    lost = []

    def lose_first(path, body):
        status, content = answer(path, body)
        if not lost:
            lost.append(path)
            return 502, {"title": "the answer got lost"}
        return status, content

    monkeypatch.setattr(fake_api, "answer", lose_first)
    reporter.event("count", {"n": 0})
    assert reporter.flush()
    assert fake_api.repeated == 1
    assert numbers(fake_api) == [0]


def test_a_spool_survives_the_kill_of_its_process(fake_api, config, repository):
    fake_api.stop()
    script = """
import os, signal, sys
from worker.reporter import Reporter, ReporterConfig
reporter = Reporter(ReporterConfig(sys.argv[1], "run_1", 1, "token", sys.argv[2]))
for n in range(100):
    reporter.event("count", {"n": n})
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script, config.api_url, config.spool_dir], cwd=repository
    )
    assert killed.returncode == -signal.SIGKILL
    (file,) = spool_files(config)
    with file.open("ab") as torn:
        torn.write(b'{"id":"rp_torn')
    fake_api.start()
    assert drain(config, fake_api) == 0
    assert numbers(fake_api) == list(range(100))
    assert list(Path(config.spool_dir).iterdir()) == []


def test_leftovers_start_behind_what_was_acknowledged(fake_api, config):
    writer = SpoolWriter(Path(config.spool_dir), "child")
    for n in range(10):
        writer.append(b'{"kind":"event","id":"rp_1234%04d","type":"t","data":{"n":%d}}' % (n, n))
    writer.close()
    reader = SpoolReader(writer.path)
    _, end = reader.batch(4, 10**6)
    reader.acknowledge(end)
    reader.close()
    assert drain(config, fake_api) == 0
    assert numbers(fake_api) == [4, 5, 6, 7, 8, 9]


def test_an_unreadable_acknowledgement_means_that_all_is_sent_again(config):
    writer = SpoolWriter(Path(config.spool_dir), "child")
    writer.append(b"{}")
    for content in ("", "many", "-4", "999"):
        writer.path.with_name(writer.path.name + ".ack").write_text(content)
        assert SpoolReader(writer.path).acknowledged == 0
    writer.close()


def test_the_spool_of_a_living_process_is_not_touched(fake_api, config, reporter):
    fake_api.fail_next = [401]
    reporter.event("count", {"n": 0})
    fake_api.wait_for(lambda: fake_api.calls)
    assert drain(config, fake_api) == 1
    assert len(fake_api.calls) == 1
    assert reporter.flush()
    assert numbers(fake_api) == [0]


def test_leftovers_are_kept_when_the_api_stays_away(fake_api, config, reporter):
    fake_api.stop()
    reporter.event("count", {"n": 0})
    assert not reporter.close(timeout=0)
    assert drain(config, fake_api, timeout=0.3) == 1
    assert len(spool_files(config)) == 1


def test_leftovers_of_a_lost_lease_are_not_wanted(fake_api, config, reporter):
    fake_api.stop()
    reporter.event("count", {"n": 0})
    reporter.close(timeout=0)
    fake_api.lease_lost = True
    fake_api.start()
    with pytest.raises(LeaseLost):
        drain(config, fake_api)


def test_a_fork_writes_a_file_of_its_own_and_loses_nothing(fake_api, config, reporter):
    reporter.event("count", {"n": 0})
    assert reporter.flush()
    outbox_of_parent = reporter._outbox
    # The locks are held while the process forks: nobody will ever release them in the child.
    with reporter._lock, outbox_of_parent._changed:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            code = 1
            try:
                reporter.event("count", {"n": 1})
                own = reporter._outbox
                if reporter.flush() and own.path != outbox_of_parent.path:
                    code = 0
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reporter.event("count", {"n": 2})
    assert reporter.flush()
    assert sorted(numbers(fake_api)) == [0, 1, 2]
    assert len(spool_files(config)) == 2
    assert drain(config, fake_api) == 1  # the child's file is done with, ours is in use
    assert spool_files(config) == [outbox_of_parent.path]


def test_a_reporter_goes_through_pickle_and_reports_on(fake_api, reporter):
    copy = pickle.loads(pickle.dumps(reporter))
    assert copy.config == reporter.config
    copy.event("count", {"n": 1})
    assert copy.close()
    assert numbers(fake_api) == [1]


def test_a_lost_lease_ends_the_shipping_and_is_known(fake_api, config, reporter):
    assert not reporter.lost
    fake_api.lease_lost = True
    reporter.event("late")
    assert not reporter.flush()
    assert reporter.lost
    calls = len(fake_api.calls)
    reporter.event("later")
    assert not reporter.flush(timeout=0.2)
    assert len(fake_api.calls) == calls


def test_a_report_that_is_refused_holds_up_no_other(fake_api, reporter):
    fake_api.refuses = lambda report: report.data.get("n") in (3, 17)
    fake_api.fail_next = [503]
    for n in range(20):
        reporter.event("count", {"n": n})
    assert reporter.flush()
    assert numbers(fake_api) == [n for n in range(20) if n not in (3, 17)]


def test_a_damaged_line_is_left_out_and_the_rest_arrives(fake_api, config):
    writer = SpoolWriter(Path(config.spool_dir), "child")
    for line in (
        b'{"kind":"event","id":"rp_12345678","type":"t","data":{"n":1}}',
        b'{"id":"rp_',
        b"\xff",
    ):
        writer.append(line)
    writer.close()
    assert drain(config, fake_api) == 0
    assert numbers(fake_api) == [1]


def test_a_full_disk_delays_reports_and_tears_no_line(fake_api, reporter, monkeypatch):
    write = os.write
    attempts = []

    def full(descriptor, line):
        attempts.append(line)
        if len(attempts) == 1:
            return write(descriptor, line[:10])
        if len(attempts) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, line)

    monkeypatch.setattr(spool.os, "write", full)
    for n in range(3):
        reporter.event("count", {"n": n})
    assert reporter.flush()
    assert numbers(fake_api) == [0, 1, 2]


def test_a_closed_reporter_leaves_no_file_and_reports_anew(fake_api, config, reporter):
    reporter.event("count", {"n": 0})
    assert reporter.close()
    assert list(Path(config.spool_dir).iterdir()) == []
    reporter.event("count", {"n": 1})
    assert reporter.close()
    assert numbers(fake_api) == [0, 1]


def test_a_process_that_ends_in_good_order_ships_its_last_reports(fake_api, config, repository):
    script = """
import sys
from worker.reporter import Reporter, ReporterConfig
reporter = Reporter(ReporterConfig(sys.argv[1], "run_1", 1, "token", sys.argv[2]))
reporter.event("count", {"n": 0})
"""
    subprocess.run(
        [sys.executable, "-c", script, config.api_url, config.spool_dir],
        cwd=repository,
        check=True,
    )
    assert numbers(fake_api) == [0]
    assert spool_files(config) == []


def test_reports_and_spool_are_for_this_user_alone(fake_api, config, reporter):
    fake_api.stop()
    reporter.event("count", {"n": 0})
    (file,) = spool_files(config)
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_reporting_leaves_the_random_numbers_of_training_alone(fake_api, reporter):
    import random

    random.seed(1)
    state = random.getstate()
    fake_api.fail_next = [503]
    reporter.event("count", {"n": 0})
    assert reporter.flush()
    gc.collect()
    assert random.getstate() == state
