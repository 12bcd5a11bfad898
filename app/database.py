"""The database: its connection, its two kinds of session, and its migrations."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlmodel import Session

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
"""Beside this package in a checkout and in an installation alike, whatever the current folder."""

MEMORY = (None, "", ":memory:")
"""Names of SQLite databases that are no file."""

BUSY_MILLISECONDS = 10_000
"""How long SQLite waits for another process's write."""


class DatabaseTooNew(Exception):
    """The database was made by a newer version of this software, which alone can use it."""


class DatabaseUnusable(Exception):
    """The database cannot be opened: its URL, its folder, its file or its server."""


class DatabaseGone(Exception):
    """The file that was opened is at its place no longer: what is written would be lost."""


class Database:
    """One database. ``read`` sees a snapshot; ``write`` is one transaction, kept at its end."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._file: tuple[Path, tuple[int, int]] | None = None
        # SQLite has one writer at a time. Waiting here is fair and cheap; its own wait polls.
        self._one_writer: AbstractContextManager[Any] = (
            threading.Lock() if self.engine.dialect.name == "sqlite" else nullcontext()
        )
        self._writing = self.engine.execution_options(sqlite_begin="IMMEDIATE")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session whose changes are on disk when the block ends, or gone when it raises.

        Errors: ``DatabaseGone``.
        """
        self.check_file()
        with self._one_writer, Session(self._writing, expire_on_commit=False) as session:
            yield session
            session.commit()

    def migrate(self) -> None:
        """Brings the schema to this version's revision.

        Errors: ``DatabaseTooNew`` when the database's revision is not one of ours,
        ``DatabaseUnusable`` when there is no using it at all.
        """
        try:
            self._migrate()
        except DBAPIError as error:
            # The driver's own words: SQLAlchemy's have the statement and a page of its manual.
            raise DatabaseUnusable(f"the database cannot be used: {_one_line(error)}") from error
        if self.engine.dialect.name == "sqlite" and self.engine.url.database not in MEMORY:
            path = Path(str(self.engine.url.database))
            self._file = path, _identity(path)

    def check_file(self) -> None:
        """Errors: ``DatabaseGone`` when SQLite's file was removed or replaced since it was opened.

        SQLite would go on with the file that has no name any more, and all would be lost at exit.
        """
        if self._file is None:
            return
        path, opened = self._file
        try:
            found = _identity(path)
        except FileNotFoundError:
            raise DatabaseGone(f"the database file {path.name} was removed") from None
        if found != opened:
            raise DatabaseGone(
                f"the database file {path.name} was replaced: the service must be started again"
            )

    def _migrate(self) -> None:
        # Alembic takes 0.2 s to import, which nothing but this needs.
        from alembic import command
        from alembic.script import ScriptDirectory

        config = alembic_config()
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        with self._one_writer, self._writing.begin() as connection:
            found = revision(connection)
            if found is not None and found not in known:
                raise DatabaseTooNew(
                    f"the database {shown_url(self.engine)} is of revision {found}, which this "
                    f"version does not know: a newer tautrain made it. Use that version, or "
                    f"another database (TAUTRAIN_DATABASE_URL or TAUTRAIN_DATA_DIR)."
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def close(self) -> None:
        """Closes every connection."""
        self.engine.dispose()


def alembic_config() -> Config:
    """Alembic's configuration, made by code: no file, no current folder."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def revision(connection: Connection) -> str | None:
    """The revision a database is at; ``None`` for an empty one."""
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def shown_url(engine: Engine) -> str:
    """The engine's URL without its password."""
    return engine.url.render_as_string(hide_password=True)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _one_line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True)
        parsed.get_dialect()
    except (ArgumentError, ValueError) as error:
        # Not its text: that may hold the URL, and so a password.
        raise DatabaseUnusable("this is no database URL that SQLAlchemy can read") from error
    except ImportError as error:
        raise DatabaseUnusable(f"the database's driver is not installed: {error}") from error
    if parsed.database not in MEMORY:
        folder = Path(str(parsed.database)).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseUnusable(
                f"the folder {folder} cannot be used: {error.strerror}"
            ) from error
    # As many connections as there are threads to use them (Starlette's pool has 40).
    engine = create_engine(
        parsed, connect_args={"check_same_thread": False}, pool_size=10, max_overflow=40
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Python's sqlite3 would begin transactions on its own, too late and never IMMEDIATE.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MILLISECONDS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    # A worker forgets a report once it is acknowledged, so what was acknowledged must be on disk.
    # In WAL mode only FULL syncs at every commit; NORMAL may lose the last ones in a power cut.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its lock at once: a read that turns into a write can fail without waiting.
    mode = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
