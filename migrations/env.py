"""Alembic's environment: it is always given a connection (see ``app.database``)."""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlmodel import AutoString, SQLModel

from app.tables import UtcDateTime


def render(kind: str, item: object, _context: AutogenContext) -> str | Literal[False]:
    """Revisions name SQLAlchemy's own types: ours may change after a revision is written."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, AutoString):
        return "sa.String()"
    return False


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=SQLModel.metadata,
    # SQLite cannot alter a table; Alembic copies it instead.
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
    render_item=render,
)
with context.begin_transaction():
    context.run_migrations()
