"""What tests with real processes share: waiting, ports, settings and an innocent bystander."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
WAIT_SECONDS = 30


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s for {what}"
        time.sleep(0.02)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run. One that ended may wait, as a zombie, for its parent to notice."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with it."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(data_dir: Path, port: int) -> dict[str, str]:
    return {**os.environ, "TAUTRAIN_DATA_DIR": str(data_dir), "TAUTRAIN_PORT": str(port)}
