"""The real service for tests: an API and a worker, as processes, on a data folder of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60
STOP_SECONDS = 60
ENDED = {"succeeded", "failed", "cancelled"}


class Service:
    """A client of the running API."""

    def __init__(self, url: str, data_dir: Path) -> None:
        self.url = url
        self.data_dir = data_dir
        self.http = httpx.Client(base_url=url, trust_env=False, timeout=30)

    def post_run(self, **body: Any) -> str:
        """Queues a run; its id."""
        answer = self.http.post("/runs", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def run(self, run_id: str) -> dict[str, Any]:
        """The run's document."""
        answer = self.http.get(f"/runs/{run_id}")
        answer.raise_for_status()
        document: dict[str, Any] = answer.json()
        return document

    def wait(self, run_id: str, seconds: float) -> dict[str, Any]:
        """The run's document once it has ended."""
        deadline = time.monotonic() + seconds
        while (document := self.run(run_id))["status"] not in ENDED:
            assert time.monotonic() < deadline, f"after {seconds} s: {brief(document)}"
            time.sleep(1)
        return document

    def wait_for_phase(self, run_id: str, phase: str, seconds: float) -> None:
        """Returns once the run is in the phase."""
        deadline = time.monotonic() + seconds
        while (document := self.run(run_id))["phase"] != phase:
            assert document["status"] not in ENDED, brief(document)
            assert time.monotonic() < deadline, f"after {seconds} s: {brief(document)}"
            time.sleep(0.5)

    def all_items(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """Every item of a paginated list."""
        items: list[dict[str, Any]] = []
        cursor = None
        while True:
            params = {**query, "limit": 100, **({"cursor": cursor} if cursor else {})}
            answer = self.http.get(path, params=params)
            answer.raise_for_status()
            page = answer.json()
            items += page["items"]
            cursor = page["next_cursor"]
            if not cursor:
                return items


def brief(document: dict[str, Any]) -> str:
    """What to show of a run that did not do what it should."""
    return (
        f"{document['status']} in {document['phase']}, {document['progress']}, {document['error']}"
    )


@contextmanager
def service(data_dir: Path, *, prefix: tuple[str, ...] = ()) -> Iterator[Service]:
    """Starts an API and a worker; ends both, and what the worker started.

    Args:
        prefix: put before each command, e.g. to run it under another program.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "TAUTRAIN_DATA_DIR": str(data_dir),
        "TAUTRAIN_PORT": str(port),
        "TAUTRAIN_URL": f"http://127.0.0.1:{port}",
    }
    data_dir.mkdir(parents=True, exist_ok=True)
    processes = []
    client = Service(f"http://127.0.0.1:{port}", data_dir)
    try:
        for name, command in (("api", ["app.cli", "serve"]), ("worker", ["worker"])):
            with (data_dir / f"{name}.log").open("ab") as log:
                processes.append(
                    subprocess.Popen(
                        [*prefix, sys.executable, "-m", *command],
                        cwd=ROOT,
                        env=environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
            if name == "api":
                _wait_until_ready(client, processes[0], data_dir / "api.log")
        yield client
    finally:
        client.http.close()
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(client: Service, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if client.http.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
