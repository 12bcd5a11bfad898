"""Whether the service lives, is ready, and what it counts."""

from __future__ import annotations

from fastapi import APIRouter, Response

from app.contract import now
from app.database import revision
from app.deps import PartsDep
from app.documents import Health, Readiness
from app.problems import Problem, documented
from app.telemetry import MEDIA_TYPE

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", responses=documented(503))
def readyz(parts: PartsDep) -> Readiness:
    """The database answers, and its schema is this version's."""
    parts.database.check_file()
    with parts.database.read() as session:
        found = revision(session.connection())
    if found is None:
        raise Problem(503, "the database has no schema")
    return Readiness(revision=found)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(parts: PartsDep) -> Response:
    """Counters in Prometheus' text format."""
    parts.telemetry.waiting.set(parts.wakeup.waiting)
    with parts.database.read() as session:
        text = parts.telemetry.text(session, now())
    return Response(text, media_type=MEDIA_TYPE)
