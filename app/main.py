"""The application: ``create_app`` puts its parts together (``uvicorn app.main:create_app
--factory``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI, Request, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from app import problems
from app.contract import now
from app.database import Database, DatabaseGone
from app.debug import DebugPool
from app.deps import Parts
from app.hosts import HostGuard
from app.lifecycle import UnlawfulTransitionError
from app.limits import BodyLimit
from app.problems import ProblemDoc, documented, problem_response
from app.queue import LeaseLostError, expire_leases, forgive_absence
from app.reports import ForeignRolloutError
from app.routes import compare, health, results, rollouts, runs, tasks, workers
from app.settings import Settings
from app.tasks import TasksMissingError
from app.telemetry import Telemetry
from app.wakeup import Wakeup

log = logging.getLogger(__name__)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application, its database migrated.

    Errors: ``app.database.DatabaseTooNew`` when a newer version made the database,
    ``DatabaseUnusable`` when it cannot be opened.
    """
    settings = settings or Settings()
    database = Database(settings.sqlalchemy_url())
    try:
        database.migrate()
    except BaseException:
        database.close()
        raise
    app = FastAPI(
        title="tautrain",
        version=_version(),
        description="Trains a τ²-bench agent by reinforcement learning.",
        lifespan=_lifespan,
        responses=documented(422),
    )
    app.state.parts = Parts(
        settings=settings,
        database=database,
        wakeup=Wakeup(),
        debug_pool=DebugPool(settings),
        telemetry=Telemetry(),
    )
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(HostGuard, settings=settings)
    _install_errors(app)
    for module in (runs, results, rollouts, tasks, compare, workers, health):
        app.include_router(module.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    await run_in_threadpool(_forgive, parts)
    watch = asyncio.create_task(_watch_leases(parts))
    try:
        yield
    finally:
        parts.wakeup.stop()
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await parts.debug_pool.close()
        parts.database.close()


async def _watch_leases(parts: Parts) -> None:
    """Ends lapsed attempts, so that their runs are queued again even while no worker asks."""
    while True:
        try:
            lapsed = await run_in_threadpool(_expire, parts)
        except (SQLAlchemyError, DatabaseGone) as error:
            # A full disk, a busy or a damaged database may be mended; without this task no lease
            # would ever lapse.
            reason = getattr(error, "orig", None) or error
            log.warning("lapsed leases could not be looked for: %s", reason)
        else:
            if lapsed:
                log.warning("leases lapsed of runs: %s", ", ".join(lapsed))
                parts.telemetry.lapses.inc(len(lapsed))
                parts.wakeup.notify()
        await asyncio.sleep(parts.settings.lease_check_seconds)


def _forgive(parts: Parts) -> None:
    with parts.database.write() as session:
        forgive_absence(session, now())


def _expire(parts: Parts) -> list[str]:
    with parts.database.write() as session:
        return expire_leases(session, now())


def _install_errors(app: FastAPI) -> None:
    problems.install(app)

    async def conflict(_: Request, error: Exception) -> Response:
        return problem_response(409, str(error))

    async def gone(_: Request, error: Exception) -> Response:
        log.error("%s", error)
        return problem_response(503, str(error), headers=problems.RETRY_LATER)

    async def unavailable(_: Request, error: Exception) -> Response:
        return problem_response(503, str(error))

    for kind in (UnlawfulTransitionError, LeaseLostError, ForeignRolloutError):
        app.add_exception_handler(kind, conflict)
    app.add_exception_handler(DatabaseGone, gone)
    app.add_exception_handler(TasksMissingError, unavailable)
    _document_problems(app)


def _document_problems(app: FastAPI) -> None:
    """Adds the problem document to the OpenAPI schemas, to which ``documented`` refers."""
    generate = app.openapi

    def openapi() -> dict[str, object]:
        document = generate()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "ProblemDoc" not in schemas:
            schema = ProblemDoc.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas["ProblemDoc"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _version() -> str:
    try:
        return version("tautrain")
    except PackageNotFoundError:
        return "0+checkout"
