"""Errors as problem details (RFC 9457): one exception, one document, and their handlers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic_core import ErrorDetails
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, ProgrammingError
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"

MOST_ERRORS = 50
"""Most errors that a problem lists: who sends a million wrong fields is not sent a million."""

DETAILED_ERRORS = 5
"""How many of them its detail repeats."""

RETRY_LATER = {"Retry-After": "2"}
"""Header of an answer that may be another soon."""

LONGEST_TEXT = 500
"""Most characters of a path or message, which may hold what the caller sent."""

log = logging.getLogger(__name__)


class FieldProblem(BaseModel):
    """One field that was refused."""

    path: str = Field(description="Where it is, for example config.training.batch_tasks.")
    message: str


class ProblemDoc(BaseModel):
    """Problem details of RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    errors: list[FieldProblem] = Field(default_factory=list)


class Problem(Exception):
    """An error that the caller is told of as a problem document."""

    def __init__(
        self,
        status: int,
        detail: str,
        errors: Iterable[FieldProblem] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = list(errors)
        self.headers = headers


def not_found(what: str, name: str) -> Problem:
    """404: there is no such thing."""
    return Problem(404, f"there is no {what} {name!r}")


def conflict(detail: str) -> Problem:
    """409: not in this state."""
    return Problem(409, detail)


def invalid(errors: Sequence[FieldProblem], more: int = 0) -> Problem:
    """422: these fields cannot be, and ``more`` that are not named."""
    more += max(0, len(errors) - DETAILED_ERRORS)
    parts = [f"{e.path}: {e.message}" for e in errors[:DETAILED_ERRORS]]
    return Problem(422, "; ".join(parts + ([f"and {more} more"] if more else [])), errors)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's ``responses`` for problems with these statuses."""
    schema = {"$ref": "#/components/schemas/ProblemDoc"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


def error_path(loc: Sequence[int | str], data: Any, prefix: Sequence[str] = ()) -> str:
    """The dotted path of a pydantic error, without the tags of discriminated unions.

    ``data`` is what was validated: a step that equals the ``kind`` found there is the tag that
    pydantic adds, once for each object, even where a field has the same name.
    """
    parts = list(prefix)
    tagged: Any = None
    for step in loc:
        if isinstance(data, dict):
            if data.get("kind") == step and data is not tagged:
                tagged = data
                continue
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            data = None
        parts.append(str(step))
    return ".".join(parts)


def field_problem(error: ErrorDetails, data: Any, prefix: Sequence[str] = ()) -> FieldProblem:
    """What a pydantic error says of a field, without the value that was sent."""
    return FieldProblem(
        path=error_path(error["loc"], data, prefix),
        message=error["msg"].removeprefix("Value error, "),
    )


def shortened(text: str, length: int = LONGEST_TEXT) -> str:
    """The text, its middle left out where it is too long."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2]} … {text[-length // 2 :]}"


def problem_response(
    status: int,
    detail: str | None,
    errors: Sequence[FieldProblem] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """The response for a problem."""
    listed = [
        FieldProblem(path=shortened(error.path), message=shortened(error.message))
        for error in errors[:MOST_ERRORS]
    ]
    if detail is not None:
        detail = shortened(detail, DETAILED_ERRORS * LONGEST_TEXT)
    document = ProblemDoc(
        title=HTTPStatus(status).phrase, status=status, detail=detail, errors=listed
    )
    # ensure_ascii also keeps a lone surrogate of a path or header from breaking the encoding.
    content = json.dumps(document.model_dump())
    return Response(content, status, media_type=MEDIA_TYPE, headers=headers)


def install(app: FastAPI) -> None:
    """Makes every error of the application a problem document."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, error: Problem) -> Response:
        return problem_response(error.status, error.detail, error.errors, error.headers)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        headers = dict(error.headers) if error.headers else None
        return problem_response(error.status_code, str(error.detail), headers=headers)

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        found = error.errors()
        problems = [_request_problem(item, error.body) for item in found[:MOST_ERRORS]]
        more = len(found) - len(problems)
        detail = "the request is not valid" + (f": these errors, and {more} more" if more else "")
        return problem_response(422, detail, problems)

    @app.exception_handler(OverflowError)
    async def _too_large(_: Request, error: OverflowError) -> Response:
        return problem_response(422, f"a number is too large: {error}")

    @app.exception_handler(DatabaseError)
    async def _database(_: Request, error: DatabaseError) -> Response:
        if isinstance(error, (IntegrityError, DataError, ProgrammingError)):
            raise error  # a fault of ours, not a state of the database
        log.error("the database refused: %s", error.orig)
        detail = "the database cannot answer now (busy, full, read-only or damaged)"
        return problem_response(503, detail, headers=RETRY_LATER)

    @app.exception_handler(Exception)
    async def _unforeseen(_: Request, error: Exception) -> Response:
        # The traceback goes to the log (Starlette raises it again); the caller learns nothing.
        return problem_response(500, "an error of the service; its log has the details")


def _request_problem(error: ErrorDetails, body: Any) -> FieldProblem:
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", "not JSON")
        return FieldProblem(path="body", message=f"the body is not valid JSON: {reason}")
    place, *loc = error["loc"]
    if place == "body":
        return (
            field_problem({**error, "loc": tuple(loc)}, body)
            if loc
            else FieldProblem(path="body", message=error["msg"])
        )
    return FieldProblem(path=".".join(map(str, error["loc"])), message=error["msg"])
