"""Writes a new revision from the difference between ``app.tables`` and the revisions so far."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.script import ScriptDirectory

from app.database import Database, alembic_config


def main(message: str) -> None:
    """Makes a database of the newest revision, and compares the models with it."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'empty.db'}")
        database.migrate()
        config = alembic_config()
        number = len(list(ScriptDirectory.from_config(config).walk_revisions())) + 1
        with database.engine.connect() as connection:
            config.attributes["connection"] = connection
            command.revision(config, message, autogenerate=True, rev_id=f"{number:04}")
        database.close()


if __name__ == "__main__":
    main(sys.argv[1])
