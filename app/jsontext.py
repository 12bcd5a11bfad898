"""JSON as it arrives: stricter than Python's about numbers, forgiving about broken Unicode.

Python's parser takes ``NaN``, infinities and integers of any size, none of which the database or
a JSON answer can hold; and it takes lone surrogates, which cannot be encoded as UTF-8. Numbers of
that kind are refused; such text is what a model said, so it is kept, with U+FFFD in their place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

LARGEST_INTEGER = 2**63 - 1
DEEPEST = 64
"""Levels of nesting; what is deeper could be stored, and then not be written by pydantic."""

THREAD_BYTES = 64 * 1024
"""A body of at least this size is parsed and validated in a thread, so that other requests go
on: Python changes threads between the parts of a document, where validators of ours run."""

REPLACEMENT = "\ufffd"


def parse_json(text: bytes) -> Any:
    """Parses a document.

    Errors: ``json.JSONDecodeError`` for what is no JSON, not UTF-8, too deep, or has a number
    that is not finite or does not fit into 64 bits.
    """
    try:
        value = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_fitting, strict=True
        )
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("the text is not UTF-8", "", error.start) from error
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", "", 0) from error
    _refuse_depth(value)
    # Only these bytes can begin a surrogate, as an escape or as itself; most documents have none.
    if b"\\u" in text or b"\xed" in text:
        value, _ = repair(value)
    return value


def repair(value: Any) -> tuple[Any, bool]:
    """Replaces what cannot be encoded by U+FFFD; says whether anything was.

    A rollout document, known by its ``messages``, is marked with ``text_repaired``.
    """
    if isinstance(value, str):
        if value.isascii() or _encodes(value):
            return value, False
        return "".join(REPLACEMENT if "\ud800" <= c <= "\udfff" else c for c in value), True
    if isinstance(value, list):
        parts = [repair(item) for item in value]
        return [part for part, _ in parts], any(changed for _, changed in parts)
    if isinstance(value, dict):
        pairs = [(repair(key), repair(item)) for key, item in value.items()]
        document = {key: item for (key, _), (item, _) in pairs}
        changed = any(of_key or of_item for (_, of_key), (_, of_item) in pairs)
        if changed and "messages" in document:
            document["text_repaired"] = True
        return document, changed
    return value, False


def _refuse_depth(value: Any) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [child for one in inner for child in one if isinstance(child, (dict, list))]
        if not level:
            return
    raise json.JSONDecodeError(f"nested more than {DEEPEST} levels deep", "", 0)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(constant: str) -> float:
    raise json.JSONDecodeError(f"{constant} is not JSON", "", 0)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise json.JSONDecodeError("a number is too large", "", 0)
    return value


def _fitting(digits: str) -> int:
    # The length is checked first: Python refuses to convert very long digit strings.
    if len(digits) > 20 or abs(value := int(digits)) > LARGEST_INTEGER:
        raise json.JSONDecodeError("a whole number does not fit into 64 bits", "", 0)
    return value


class StrictRequest(Request):
    """A request whose JSON body is parsed by :func:`parse_json`.

    A large one is also validated, as ``model``: FastAPI takes the instance as it is.
    """

    def __init__(self, scope: Scope, receive: Receive, model: type[BaseModel] | None) -> None:
        super().__init__(scope, receive)
        self._model = model
        self.refused: RequestValidationError | None = None

    async def json(self) -> Any:
        """The parsed body."""
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) < THREAD_BYTES:
                self._json = parse_json(body)
            else:
                self._json = await run_in_threadpool(self._validated, body)
        return self._json

    def _validated(self, body: bytes) -> Any:
        value = parse_json(body)
        if self._model is None:
            return value
        try:
            return self._model.model_validate(value)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            errors = [{**item, "loc": ("body", *item["loc"])} for item in found]
            self.refused = RequestValidationError(errors, body=value)
            raise self.refused from error


class JsonRoute(APIRoute):
    """A route that reads its body as a :class:`StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The handler, given a strict request."""
        handle = super().get_route_handler()
        bodies = [param.field_info.annotation for param in self.dependant.body_params]
        body = bodies[0] if len(bodies) == 1 else None
        model: type[BaseModel] | None = None
        if isinstance(body, type) and issubclass(body, BaseModel):
            model = body

        async def handler(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive, model)
            try:
                return await handle(strict)
            except HTTPException:
                # FastAPI takes whatever is raised while it reads a body for a 400.
                if strict.refused is not None:
                    raise strict.refused from None
                raise

        return handler
