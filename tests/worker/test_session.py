"""A child's session: all of it ends, and nothing else does."""

import os
import signal
import subprocess
import sys
import time

import pytest

from app.contract import RunError
from worker import session as session_module
from worker.handover import AttemptResult
from worker.processes import end_session, session_members
from worker.session import ChildExit, ChildSession
from worker.verdict import verdict

FAMILY = """
import os, subprocess, sys
# Like Ray's actors: groups of their own, the same session.
plain = subprocess.Popen(["sleep", "600"], process_group=0)
stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; exec sleep 600"],
                            process_group=0, stdout=subprocess.PIPE)
stubborn.stdout.readline()
# Reparented: its parent has exited.
orphan = subprocess.run(["sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE)
print("pids", plain.pid, stubborn.pid, int(orphan.stdout), flush=True)
{then}
"""


class Listener:
    """Collects lines and lets a test wait for one."""

    def __init__(self):
        self.lines = []

    def __call__(self, lines):
        self.lines += lines

    def wait_for(self, start, timeout=10.0):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for line in self.lines:
                if line.startswith(start):
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no line {start!r} in {self.lines}")


@pytest.fixture
def start(tmp_path):
    sessions = []

    def run(script, *arguments):
        listener = Listener()
        session = ChildSession(
            [sys.executable, "-c", script, *arguments],
            directory=tmp_path,
            environment=dict(os.environ),
            on_lines=listener,
        )
        sessions.append(session)
        return session, listener

    yield run
    for session in sessions:
        session.collect(grace_seconds=0)


@pytest.fixture
def bystander():
    """A process of another session, which nobody may touch."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    assert process.poll() is None, "a process of another session was ended"
    process.kill()
    process.wait()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_ending_a_session_ends_other_groups_and_orphans_and_nothing_else(start, bystander):
    session, listener = start(FAMILY.format(then="plain.wait()"))
    pids = [int(pid) for pid in listener.wait_for("pids").split()[1:]]
    assert all(map(alive, pids))
    assert len({os.getpgid(pid) for pid in pids}) > 1
    ended = session.end(grace_seconds=0.5)
    assert ended.left == frozenset()
    assert ended.killed == {pids[1]}
    assert not any(map(alive, pids))
    assert session_members(session.sid) == frozenset()
    assert session.collect().ended_by_us


def test_what_a_child_leaves_behind_at_its_own_end_is_ended(start, bystander):
    session, listener = start(FAMILY.format(then="sys.exit(0)"))
    assert session.wait(10)
    pids = [int(pid) for pid in listener.wait_for("pids").split()[1:]]
    assert any(map(alive, pids))
    exit_ = session.collect(grace_seconds=0.3)
    assert not any(map(alive, pids))
    assert (exit_.code, exit_.signal, exit_.ended_by_us) == (0, None, False)


def test_the_leader_may_put_its_house_in_order_before_the_others_are_told(start):
    script = """
import signal, subprocess, sys
other = subprocess.Popen(["sleep", "600"], process_group=0)
def leave(*_):
    print("other is", "alive" if other.poll() is None else "gone", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""
    session, listener = start(script)
    listener.wait_for("ready")
    session.end(grace_seconds=2, leader_seconds=5)
    exit_ = session.collect()
    assert exit_.code == 0
    assert exit_.log_tail[-1] == "other is alive"


def test_a_process_that_is_started_while_the_session_ends_is_ended_too(start):
    script = """
import signal, subprocess
def breed(*_):
    subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 600"], process_group=0)
signal.signal(signal.SIGTERM, breed)
print("ready", flush=True)
while True:
    signal.pause()
"""
    session, listener = start(script)
    listener.wait_for("ready")
    ended = session.end(grace_seconds=0.5)
    assert len(ended.killed) >= 2
    assert session_members(session.sid) == frozenset()


def test_a_process_does_not_end_its_own_session_by_mistake():
    with pytest.raises(ValueError, match="sparing itself"):
        end_session(os.getsid(0), 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_that_ended_the_child_is_data(start, number):
    session, _ = start(
        f"import os; print('last words', flush=True); os.kill(os.getpid(), {number})"
    )
    assert session.wait(10)
    exit_ = session.collect()
    assert (exit_.code, exit_.signal) == (None, number)
    assert exit_.log_tail == ["last words"]
    assert exit_.describe() == f"signal {number.name}"


def test_junk_output_arrives_as_lines_within_a_second_and_in_the_file(start, tmp_path):
    script = """
import signal, sys
out = sys.stdout.buffer
out.write(b"caf\\xc3\\xa9 \\xff \\0 \\x1b[1mbold\\n" + b"x" * 20000 + b"\\n"); out.flush()
sys.stderr.write("on stderr\\n"); sys.stderr.flush()
signal.pause()
"""
    session, listener = start(script)
    began = time.monotonic()
    listener.wait_for("caf")
    listener.wait_for("on stderr")
    assert time.monotonic() - began < 5  # the start of Python included
    session.collect(grace_seconds=1)
    assert listener.lines[0] == "café \ufffd  \x1b[1mbold"
    assert len(listener.lines[1]) < 9000
    assert (tmp_path / "output.log").read_text().splitlines()[2] == "on stderr"


def test_a_command_that_does_not_exist_is_an_error_and_leaves_nothing_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ChildSession(
            ["/no/such/program"], directory=tmp_path, environment={}, on_lines=lambda lines: None
        )
    deadline = time.monotonic() + 5
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(os.listdir("/proc/self/fd")) == before


WORKER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True,
                         env={**os.environ, "TAUTRAIN_WORKER_PID": str(os.getpid())})
child.wait()
"""

STUCK_CHILD = """
import signal, subprocess, sys
from worker.session import die_with_parent
guard = die_with_parent()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen(["sh", "-c", "exec sleep 600"], process_group=0)
import os
print("pids", os.getpid(), guard, other.pid, flush=True)
signal.pause()
"""


def test_no_session_outlives_a_killed_worker(repository):
    script = STUCK_CHILD.replace(
        "from worker.session",
        "import worker.guard\nworker.guard.GRACE_SECONDS = 0.5\nfrom worker.session",
    )
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, script], cwd=repository, stdout=subprocess.PIPE, text=True
    ) as worker:
        pids = [int(pid) for pid in worker.stdout.readline().split()[1:]]
        try:
            assert len(pids) == 3
            assert all(map(alive, pids))
            worker.kill()
            # The pipe ends when the last process of the session is gone.
            assert worker.communicate(timeout=15) == ("", None)
        finally:
            worker.kill()
            for pid in filter(alive, pids):
                os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, pids))


def test_a_child_whose_worker_is_gone_already_does_not_start(repository):
    ended = subprocess.run(
        [sys.executable, "-c", "from worker.session import die_with_parent; die_with_parent()"],
        cwd=repository,
        env={**os.environ, "TAUTRAIN_WORKER_PID": "1"},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert ended.returncode == 1
    assert "gone" in ended.stderr


def test_an_attempt_by_hand_in_a_shell_gets_no_guard_that_could_end_the_shell(repository):
    ended = subprocess.run(
        [sys.executable, "-c", "from worker.session import *; print(die_with_parent())"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "None\n"


def exited(code=None, signal_=None, ended_by_us=False, out_of_memory=False):
    return ChildExit(code, signal_, ended_by_us, out_of_memory, ["tail"])


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (exited(code=3), "crashed"),
        (exited(code=0), "no_result"),
        (exited(signal_=11), "killed_by_signal"),
        (exited(signal_=9), "killed_by_signal"),
        (exited(signal_=9, out_of_memory=True), "out_of_memory"),
        (exited(code=1, out_of_memory=True), "out_of_memory"),
        (exited(signal_=11, out_of_memory=True), "killed_by_signal"),
    ],
)
def test_a_child_without_a_result_failed_by_how_it_ended(ended, code):
    request = verdict("t", None, ended)
    assert request.status == "failed"
    assert (request.error.code, request.error.log_tail) == (code, ["tail"])


def test_the_result_that_a_child_left_is_how_the_run_ends():
    done = AttemptResult(status="succeeded", stop_reason="budget")
    request = verdict("t", done, exited(signal_=9))
    assert (request.status, request.stop_reason, request.error) == ("succeeded", "budget", None)
    failed = AttemptResult(status="failed", error=RunError(code="config_refused", message="m"))
    request = verdict("t", failed, exited(code=1))
    assert request.error == RunError(code="config_refused", message="m", log_tail=["tail"])
    crash = AttemptResult(status="failed", error=RunError(code="crashed", message="actor died"))
    request = verdict("t", crash, exited(code=1, out_of_memory=True))
    assert request.error.code == "out_of_memory"
    assert "actor died" in request.error.message


def test_a_child_ended_on_request_ends_as_asked_unless_it_had_succeeded():
    ended = exited(signal_=15, ended_by_us=True)
    assert verdict("t", None, ended, "cancelled").status == "cancelled"
    failed = AttemptResult(status="failed")
    assert verdict("t", failed, ended, "handed_back").status == "handed_back"
    done = AttemptResult(status="succeeded")
    assert verdict("t", done, ended, "cancelled").status == "succeeded"


def test_an_out_of_memory_kill_is_told_by_the_kernels_count(start, monkeypatch):
    counts = iter([4, 5])
    monkeypatch.setattr(session_module, "oom_kills", lambda: next(counts))
    session, _ = start("import os; os.kill(os.getpid(), 9)")
    assert session.wait(10)
    assert session.collect().out_of_memory
