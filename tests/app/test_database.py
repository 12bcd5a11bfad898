"""Migrations, durability settings, and a database of a newer version."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from fastapi.testclient import TestClient
from sqlalchemy import inspect, text
from sqlmodel import SQLModel

import app.tables
from app import main
from app.database import (
    MIGRATIONS,
    Database,
    DatabaseTooNew,
    DatabaseUnusable,
    alembic_config,
)
from app.deps import Parts
from app.main import create_app
from app.settings import Settings

Json = dict[str, Any]


@pytest.fixture
def fresh(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'deep' / 'down' / 'x.db'}")


def test_the_migrated_schema_is_that_of_the_models(fresh: Database) -> None:
    assert app.tables.Run.__tablename__ == "run"
    fresh.migrate()
    with fresh.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_migrations_go_down_and_up_again(fresh: Database) -> None:
    fresh.migrate()
    config = alembic_config()
    with fresh.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert inspect(fresh.engine).get_table_names() == ["alembic_version"]
    fresh.migrate()
    assert set(SQLModel.metadata.tables) < set(inspect(fresh.engine).get_table_names())
    fresh.migrate()


def test_a_database_of_a_newer_version_is_refused_by_name(settings: Settings) -> None:
    database = Database(settings.sqlalchemy_url())
    database.migrate()
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(DatabaseTooNew, match=r"revision 9999.*newer tautrain"):
        create_app(settings)


def test_what_was_committed_is_synced(fresh: Database) -> None:
    fresh.migrate()
    with fresh.engine.connect() as connection:

        def pragma(name: str) -> Any:
            return connection.execute(text(f"PRAGMA {name}")).scalar_one()

        assert pragma("journal_mode") == "wal"
        assert pragma("synchronous") == 2
        assert pragma("foreign_keys") == 1
        assert pragma("busy_timeout") == 10_000


def test_a_failed_write_leaves_nothing(fresh: Database) -> None:
    fresh.migrate()

    def fail_after_writing() -> None:
        with fresh.write() as session:
            session.execute(text("PRAGMA defer_foreign_keys=ON"))
            session.execute(text("INSERT INTO report_id VALUES ('run', 'r')"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_writing()
    with fresh.read() as session:
        assert session.execute(text("SELECT count(*) FROM report_id")).scalar_one() == 0


def test_a_read_only_database_is_503_and_not_500(client: TestClient, database: Database) -> None:
    assert client.post("/runs", json={}).status_code == 201

    def refuse(connection: Any, *_: Any) -> None:
        connection.execute("PRAGMA query_only=ON")

    from sqlalchemy import event

    event.listen(database.engine, "checkout", refuse)
    answer = client.post("/runs", json={})
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "2"


def test_migrations_are_found_from_any_folder(tmp_path: Path) -> None:
    assert (MIGRATIONS / "env.py").is_file()
    root = MIGRATIONS.parent
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from app.database import Database\n"
        "Database('sqlite:///here.db').migrate()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "here.db").stat().st_size > 0


def test_a_database_of_the_first_revision_keeps_its_runs_and_what_they_hold(
    fresh: Database,
) -> None:
    config = alembic_config()

    def move(revision: str) -> None:
        with fresh.engine.begin() as connection:
            config.attributes["connection"] = connection
            step = command.downgrade if revision == "0001" else command.upgrade
            step(config, revision)

    def kept() -> tuple[int, int]:
        with fresh.engine.connect() as connection:
            counted = [
                connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
                for table in ("run", "event")
            ]
            return counted[0], counted[1]

    fresh.migrate()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with fresh.write() as session:
        lists: dict[str, Any] = {"tags": [], "train_tasks": [], "validation_tasks": []}
        documents: dict[str, Any] = {"config": {}, "config_overrides": {}, "outcomes": {}}
        names = {"name": "n", "preset": "p", "domain": "mock", "engine": "cpu", "status": "queued"}
        run = app.tables.Run(
            id="run_1", attempts_allowed=1, created_at=at, **names, **lists, **documents
        )
        session.add(run)
        session.flush()
        session.add(
            app.tables.Event(run_id="run_1", seq=1, id="e", type="t", at=at, attempt=0, data={})
        )
    move("0001")
    assert "train_rollouts_per_step" not in {
        c["name"] for c in inspect(fresh.engine).get_columns("run")
    }
    assert kept() == (1, 1)
    move("head")
    assert kept() == (1, 1)


def test_a_locked_database_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.BUSY_MILLISECONDS", 50)
    path = tmp_path / "tautrain.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        database = Database(f"sqlite:///{path}")
        with pytest.raises(DatabaseUnusable, match="locked"):
            database.migrate()
        database.close()


def test_a_database_that_was_removed_is_not_ready_and_takes_nothing(
    client: TestClient, settings: Settings, queue_run: Callable[..., Json]
) -> None:
    queue_run()
    path = settings.data_dir / "tautrain.db"
    kept = path.rename(path.with_suffix(".kept"))
    for gone in ("removed", "replaced"):
        for answer in (client.get("/readyz"), client.post("/runs", json={})):
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) > 0
            assert gone in answer.json()["detail"]
        path.touch()
    kept.rename(path)
    assert client.get("/readyz").status_code == 200
    queue_run()


def test_a_damaged_database_is_503_and_the_leases_are_watched_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(settings.model_copy(update={"lease_check_seconds": 0.01}))
    watched = threading.Semaphore(0)
    real = main._expire

    def expire(parts: Parts) -> list[str]:
        watched.release()
        return real(parts)

    monkeypatch.setattr(main, "_expire", expire)
    with TestClient(app, raise_server_exceptions=False) as client:
        app.state.parts.database.engine.dispose()
        for path in settings.data_dir.glob("tautrain.db*"):
            path.write_bytes(b"garbage" * 10_000)
        answer = client.get("/runs")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        # Counted out first: what was watched before the damage proves nothing.
        while watched.acquire(blocking=False):
            pass
        for _ in range(3):
            assert watched.acquire(timeout=10)
