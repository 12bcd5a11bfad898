"""The worker's side of the API: one method a call, with retries.

Connection errors, 429 and 5xx are retried with capped exponential back-off and jitter until the
caller's patience is over; then ``ApiAway`` is raised. A 409 is ``LeaseLost``, any other refusal
is ``Refused``.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from app.contract import (
    Claim,
    ClaimRequest,
    FinishRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    Report,
    ReportAnswer,
    WorkerRegistered,
    WorkerRegistration,
)

CALL_SECONDS = 10.0
"""How long one call may take, the held-back part of a long poll aside."""

Answer = TypeVar("Answer", bound=BaseModel)


class ApiAway(Exception):
    """The API did not answer, or answered that it cannot now, for as long as we would wait."""


class LeaseLost(Exception):
    """The attempt is no longer ours (409): another holds the run, or it is over."""


class Refused(Exception):
    """The API understood the call and refuses it, or its answer is not one of ours."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class Backoff:
    """Delays in seconds that double from ``first`` to ``cap``, each with jitter."""

    def __init__(self, first: float = 0.2, cap: float = 5.0) -> None:
        self._first = first
        self._cap = cap
        self._failures = 0
        # A generator of its own: training seeds the global one and relies on its sequence.
        self._random = random.Random()

    def next(self) -> float:
        """The delay before the next try, between half and all of the doubled one."""
        delay = min(self._cap, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return delay * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Starts again from ``first``, after a success."""
        self._failures = 0


class ApiClient:
    """Calls of a worker. Safe to use from several threads, but not across a fork."""

    def __init__(
        self, base_url: str, *, retry_seconds: float = 30.0, call_seconds: float = CALL_SECONDS
    ) -> None:
        self._retry_seconds = retry_seconds
        self._call_seconds = call_seconds
        # trust_env=False: a proxy variable must not send loopback traffic elsewhere.
        self._http = httpx.Client(
            base_url=base_url.rstrip("/"),
            timeout=httpx.Timeout(call_seconds, connect=min(3.0, call_seconds)),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; calls in flight on other threads fail."""
        self._http.close()

    def register(
        self, registration: WorkerRegistration, *, retry_seconds: float | None = None
    ) -> str:
        """Introduces a worker; returns the id that the API gave it."""
        response = self._post("/workers", _json(registration), retry_seconds)
        return _parse(WorkerRegistered, response).id

    def claim(
        self, worker_id: str, wait_seconds: float = 20.0, *, retry_seconds: float = 0.0
    ) -> Claim | None:
        """Asks for a run and waits up to ``wait_seconds`` for one; None when there is none.

        Not retried by default: a claim whose answer was lost stays with this worker until its
        lease lapses, and a second call would take a second run.
        """
        response = self._post(
            f"/workers/{worker_id}/claim",
            _json(ClaimRequest(wait_seconds=wait_seconds)),
            retry_seconds,
            timeout=self._call_seconds + wait_seconds,
        )
        return None if response.status_code == 204 else _parse(Claim, response)

    def heartbeat(
        self, run_id: str, attempt: int, lease_token: str, *, retry_seconds: float | None = None
    ) -> HeartbeatAnswer:
        """Renews the lease; the answer says whether to cancel."""
        body = _json(HeartbeatRequest(lease_token=lease_token))
        response = self._post(_attempt(run_id, attempt) + "/heartbeat", body, retry_seconds)
        return _parse(HeartbeatAnswer, response)

    def send_reports(
        self,
        run_id: str,
        attempt: int,
        lease_token: str,
        reports: Sequence[Report],
        *,
        retry_seconds: float | None = None,
    ) -> ReportAnswer:
        """Sends reports, oldest first; once this returns the API has them on disk."""
        lines = [_json(report) for report in reports]
        return self.send_report_lines(
            run_id, attempt, lease_token, lines, retry_seconds=retry_seconds
        )

    def send_report_lines(
        self,
        run_id: str,
        attempt: int,
        lease_token: str,
        lines: Sequence[bytes],
        *,
        retry_seconds: float | None = None,
    ) -> ReportAnswer:
        """The same for reports that are JSON already, as a spool file holds them."""
        head = b'{"lease_token":' + json.dumps(lease_token).encode() + b',"reports":['
        body = head + b",".join(lines) + b"]}"
        response = self._post(_attempt(run_id, attempt) + "/reports", body, retry_seconds)
        return _parse(ReportAnswer, response)

    def finish(
        self,
        run_id: str,
        attempt: int,
        request: FinishRequest,
        *,
        retry_seconds: float | None = None,
    ) -> None:
        """Ends the attempt."""
        self._post(_attempt(run_id, attempt) + "/finish", _json(request), retry_seconds)

    def _post(
        self,
        path: str,
        body: bytes,
        retry_seconds: float | None,
        *,
        timeout: float | None = None,
    ) -> httpx.Response:
        patience = self._retry_seconds if retry_seconds is None else retry_seconds
        deadline = time.monotonic() + patience
        backoff = Backoff()
        while True:
            try:
                response = self._http.post(
                    path,
                    content=body,
                    headers={"content-type": "application/json"},
                    timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else timeout,
                )
            except httpx.RequestError as error:
                trouble = f"{type(error).__name__}: {error}"
                delay = backoff.next()
            else:
                if response.is_success:
                    return response
                detail = _problem_detail(response)
                if response.status_code == 409:
                    raise LeaseLost(detail)
                if response.status_code != 429 and response.status_code < 500:
                    raise Refused(response.status_code, detail)
                trouble = f"{response.status_code}: {detail}"
                delay = max(backoff.next(), _retry_after(response))
            if time.monotonic() + delay > deadline:
                raise ApiAway(trouble)
            time.sleep(delay)


def _attempt(run_id: str, attempt: int) -> str:
    return f"/runs/{run_id}/attempts/{attempt}"


def _json(document: BaseModel) -> bytes:
    return document.model_dump_json().encode()


def _parse(model: type[Answer], response: httpx.Response) -> Answer:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Refused(
            response.status_code,
            f"the answer is not a {model.__name__} ({where}: {first['msg']}); is this the API?",
        ) from error


def _problem_detail(response: httpx.Response) -> str:
    """What a problem document says; the start of the body where it is something else."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict):
        said = problem.get("detail") or problem.get("title")
        if said:
            errors = problem.get("errors")
            return f"{said} {json.dumps(errors)[:500]}" if errors else str(said)
    return response.text[:500] or response.reason_phrase


def _retry_after(response: httpx.Response) -> float:
    """Seconds the API asks us to wait, at most 30; 0 where it names none."""
    try:
        return min(30.0, max(0.0, float(response.headers.get("retry-after", "0"))))
    except ValueError:
        return 0.0
