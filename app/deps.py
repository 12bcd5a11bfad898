"""What routes ask for: the parts of the application, and what several of them read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from sqlmodel import Session

from app.database import Database
from app.debug import DebugPool
from app.problems import not_found
from app.settings import Settings
from app.tables import Run
from app.telemetry import Telemetry
from app.wakeup import Wakeup

LARGEST_PAGE = 500
LARGEST_INTEGER = 2**31 - 1


@dataclass(frozen=True)
class Parts:
    """The parts of one application."""

    settings: Settings
    database: Database
    wakeup: Wakeup
    debug_pool: DebugPool
    telemetry: Telemetry


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(_parts)]
RunId = Annotated[str, Path(max_length=64, examples=["run_01jdz5n3v8k2q4w6x8y0a1b2c3"])]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Most items of the page.")]
Cursor = Annotated[str | None, Query(max_length=300, description="next_cursor of the page before.")]
Seq = Annotated[
    int,
    Query(alias="cursor", ge=0, le=LARGEST_INTEGER, description="The seq after which to continue."),
]
MaxPoints = Annotated[
    int | None, Query(ge=1, le=100_000, description="Thins each curve to this many points.")
]


def run_or_404(session: Session, run_id: str, lock: bool = False) -> Run:
    """The run. Errors: ``Problem`` 404."""
    run = session.get(Run, run_id, with_for_update=True if lock else None)
    if run is None:
        raise not_found("run", run_id)
    return run
