"""The demo's manners: what it starts it ends, however it ends, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app.demo.processes import Processes
from tests.real_processes import (
    ROOT,
    WAIT_SECONDS,
    alive,
    bystander,
    environment,
    unused_port,
    wait_for,
)

FAMILY = """
import os, subprocess, sys, time
# A child in a session of its own, and in it one in a process group of its own, as Ray's actors.
inner = "import os, time; os.setpgid(0, 0); print('ready', flush=True); time.sleep(600)"
middle = ("import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', %r]);"
          "time.sleep(600)" % inner)
subprocess.Popen([sys.executable, "-c", middle], start_new_session=True)
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else signal.SIG_DFL)
time.sleep(600)
"""


@pytest.mark.parametrize("manner", ["obedient", "stubborn"])
def test_stop_ends_every_descendant_and_nothing_else(tmp_path: Path, manner: str) -> None:
    processes = Processes()
    log = tmp_path / "logs" / "family.log"
    with bystander() as other:
        command = [sys.executable, "-c", FAMILY, manner]
        child = processes.start("family", command, os.environ, log)
        wait_for(lambda: "ready" in log.read_text(), "the grandchild")
        family = psutil.Process(child.process.pid).children(recursive=True)
        assert len(family) == 2
        begin = time.monotonic()
        assert processes.stop(grace_seconds=0.5) == []
        assert time.monotonic() - begin < 5
        assert alive(family) == []
        assert other.poll() is None


FAKE_WORKER = """
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text("up")
time.sleep(600)
"""

DEMO = """
import sys
from app.demo import run_demo
from app.settings import Settings
sys.exit(run_demo(Settings(), [sys.executable, *sys.argv[1:]]))
"""


def start_demo(tmp_path: Path, port: int, worker: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DEMO, *worker],
        cwd=ROOT,
        env=environment(tmp_path / "data", port),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_the_demo_started(tmp_path: Path, signum: signal.Signals) -> None:
    up = tmp_path / "up"
    demo = start_demo(tmp_path, unused_port(), ["-c", FAKE_WORKER, str(up)])
    with demo, bystander() as other:
        wait_for(up.exists, "the worker")
        family = psutil.Process(demo.pid).children(recursive=True)
        assert len(family) == 3
        demo.send_signal(signum)
        output, _ = demo.communicate(timeout=WAIT_SECONDS)
        assert other.poll() is None
    assert demo.returncode == 128 + signum
    assert alive(family) == []
    assert "everything that the demo started has ended" in output
    assert "Traceback" not in output


def test_a_signal_while_the_api_starts_leaves_nothing(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, unused_port(), ["-c", FAKE_WORKER, str(tmp_path / "up")])
    with demo:
        wait_for(lambda: bool(psutil.Process(demo.pid).children()), "the API's process")
        family = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=WAIT_SECONDS)
    assert demo.returncode == 128 + signal.SIGINT
    assert alive(family) == []
    assert not (tmp_path / "up").exists()


def test_a_second_signal_ends_a_stubborn_worker_at_once(tmp_path: Path) -> None:
    up = tmp_path / "up"
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + FAKE_WORKER
    demo = start_demo(tmp_path, unused_port(), ["-c", stubborn, str(up)])
    with demo:
        wait_for(up.exists, "the worker")
        family = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGINT)
        assert demo.stdout
        for line in demo.stdout:
            if "stopping" in line:
                break
        begin = time.monotonic()
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=WAIT_SECONDS)
    assert time.monotonic() - begin < 10
    assert alive(family) == []


def test_a_worker_that_dies_fails_the_demo_with_its_last_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        demo = start_demo(tmp_path, port, ["-c", "import sys; sys.exit('no luck')"])
        with demo:
            output, _ = demo.communicate(timeout=WAIT_SECONDS)
    assert demo.returncode == 1
    assert f"port {port} is taken" in output
    assert "the worker ended with code 1" in output
    assert "no luck" in output
    assert "Traceback" not in output
