"""An application on a SQLite file of its own, and a worker that speaks the worker's words."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response
from sqlmodel import col, update

from app.contract import Outcome
from app.database import Database
from app.main import create_app
from app.settings import Settings
from app.tables import Attempt

Json = dict[str, Any]


class FakeWorker:
    """A registered worker, and short words for what it sends."""

    def __init__(self, client: TestClient, engines: list[str]) -> None:
        self.client = client
        about = {"name": "w", "engines": engines, "cpus": 2, "memory_bytes": 2**33}
        self.id = client.post("/workers", json=about).json()["id"]
        self.run_id = self.lease_token = ""
        self.attempt = 0
        self._ids = count(1)

    def claim(self, wait_seconds: float = 0) -> Json | None:
        """Claims; remembers the lease."""
        answer = self.client.post(f"/workers/{self.id}/claim", json={"wait_seconds": wait_seconds})
        if answer.status_code == 204:
            return None
        assert answer.status_code == 200, answer.text
        claim: Json = answer.json()
        self.run_id, self.attempt = claim["run_id"], claim["attempt"]
        self.lease_token = claim["lease_token"]
        return claim

    def call(self, what: str, **fields: Any) -> Response:
        """A call about the attempt."""
        return self.client.post(
            f"/runs/{self.run_id}/attempts/{self.attempt}/{what}",
            json={"lease_token": self.lease_token, **fields},
        )

    def report(self, *reports: Json) -> Json:
        """Sends reports, each with an id of its own unless it has one."""
        named = [{"id": f"{self.id}-{next(self._ids):04}", **report} for report in reports]
        answer = self.call("reports", reports=named)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def finish(self, status: str, **fields: Any) -> Response:
        """Ends the attempt."""
        return self.call("finish", status=status, **fields)

    def rollout(self, **fields: Any) -> Json:
        """A rollout's report; completed with reward 1 unless told otherwise."""
        document: Json = {
            "id": f"ro_{self.id}_{next(self._ids):04}",
            "mode": "train",
            "step": 1,
            "domain": "mock",
            "task_id": "create_task_1",
            "outcome": Outcome.COMPLETED,
            "reward": 1.0,
            **fields,
        }
        if document["outcome"] not in ("completed", "max_steps", "agent_error"):
            document["reward"] = None
        return {"kind": "rollout", "rollout": document}


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of the newest revision, to be copied: migrating takes a while."""
    path = tmp_path_factory.mktemp("template") / "tautrain.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture
def settings(tmp_path: Path, migrated: Path) -> Settings:
    (tmp_path / "data").mkdir()
    shutil.copy(migrated, tmp_path / "data")
    return Settings(
        data_dir=tmp_path / "data",
        allowed_hosts="testserver",
        max_body_bytes=200_000,
        lease_check_seconds=3600,
        debug_start_seconds=10,
        debug_command=["/nonexistent/debug-child"],
    )


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def database(app: FastAPI) -> Database:
    found: Database = app.state.parts.database
    return found


@pytest.fixture
def queue_run(client: TestClient) -> Callable[..., Json]:
    def post(**body: Any) -> Json:
        answer = client.post("/runs", json=body)
        assert answer.status_code == 201, answer.text
        run: Json = answer.json()
        return run

    return post


@pytest.fixture
def new_worker(client: TestClient) -> Callable[..., FakeWorker]:
    def register(*engines: str) -> FakeWorker:
        return FakeWorker(client, list(engines or ("cpu",)))

    return register


@pytest.fixture
def worker(queue_run: Callable[..., Json], new_worker: Callable[..., FakeWorker]) -> FakeWorker:
    """A worker that holds a run."""
    queue_run()
    worker = new_worker()
    assert worker.claim() is not None
    return worker


@pytest.fixture
def lapse(database: Database) -> Callable[[str], None]:
    """Lets the lease of a run be a second too old."""

    def age(run_id: str) -> None:
        past = datetime.now(UTC) - timedelta(seconds=1)
        with database.write() as session:
            session.exec(
                update(Attempt)
                .where(col(Attempt.run_id) == run_id, col(Attempt.status) == "running")
                .values(lease_expires_at=past)
            )

    return age


@pytest.fixture
def child_script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Writes a debug child: ``body`` answers one ``question`` (a dict) by ``say``."""

    def write(body: str) -> list[str]:
        import sys

        script = tmp_path / "child.py"
        script.write_text(
            "import json, os, subprocess, sys, time\n"
            "def say(answer):\n    print(json.dumps(answer), flush=True)\n"
            "def rollout(question, **fields):\n"
            "    request = question['request']\n"
            "    return {'rollout': {'id': question['rollout_id'], 'mode': 'debug',\n"
            "        'domain': request['domain'], 'task_id': request['task_id'],\n"
            "        'outcome': 'completed', 'reward': 1.0,\n"
            "        'messages': [{'role': 'assistant', 'content': 'hi'}], **fields}}\n"
            "say({'ready': True})\n"
            "for line in sys.stdin:\n"
            "    question = json.loads(line)\n" + textwrap.indent(textwrap.dedent(body), "    ")
        )
        return [sys.executable, str(script)]

    return write
