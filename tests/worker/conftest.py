"""A fake of the API's worker calls on loopback, for tests of the worker alone."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.contract import (
    Claim,
    ClaimRequest,
    FinishRequest,
    HeartbeatRequest,
    ReportBatch,
    RunConfig,
    WorkerRegistration,
)

ATTEMPT_PATH = re.compile(r"/runs/([^/]+)/attempts/(\d+)/(heartbeat|reports|finish)")


class FakeApi:
    """Speaks the contract, keeps in memory what it was told, and fails when asked to."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.calls: list[str] = []
        self.registrations: list[WorkerRegistration] = []
        self.claims: list[Claim] = []
        self.heartbeats = 0
        self.batches: list[int] = []
        self.reports: dict[str, Any] = {}
        self.repeated = 0
        self.finishes: list[FinishRequest] = []
        self.cancel = False
        self.spent: str | None = None
        self.lease_lost = False
        self.unknown_worker = False
        self.fail_next: list[int] = []
        """Statuses that the next calls are answered with."""
        self.refuses: Callable[[Any], bool] = lambda report: False
        """Whether a batch with this report is refused with 422."""
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.fake = self
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Goes away: connections are refused until ``start``."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, claim: Callable[[], Any], timeout: float = 10.0) -> Any:
        """Waits until ``claim()`` is true and returns it."""
        with self.changed:
            result = self.changed.wait_for(claim, timeout)
        assert result, f"did not come true within {timeout} s; calls: {self.calls[-20:]}"
        return result

    def of_kind(self, kind: str) -> list[Any]:
        """Reports of one kind in the order they arrived first."""
        return [report for report in list(self.reports.values()) if report.kind == kind]

    def lines(self) -> list[str]:
        """Log lines that arrived."""
        return [line for report in self.of_kind("log") for line in report.lines]

    def offer(self, attempt: int = 1, run_id: str = "run_1", **config: Any) -> Claim:
        """Queues a run for the next claim."""
        claim = Claim(
            run_id=run_id,
            name="test",
            attempt=attempt,
            lease_token="lease-token-0123456789",
            lease_seconds=60,
            config=RunConfig.model_validate(config),
        )
        with self.changed:
            self.claims.append(claim)
            self.changed.notify_all()
        return claim

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        with self.changed:
            self.calls.append(path)
            self.changed.notify_all()
            if self.fail_next:
                return self.fail_next.pop(0), {"title": "Asked to fail", "detail": "as asked"}
            if path == "/workers":
                self.registrations.append(WorkerRegistration.model_validate_json(body))
                return 200, {"id": f"wk_{len(self.registrations)}"}
            if path.endswith("/claim"):
                return self._claim(ClaimRequest.model_validate_json(body).wait_seconds)
            match = ATTEMPT_PATH.fullmatch(path)
            if match is None:
                return 404, {"title": "Not found"}
            if self.lease_lost:
                return 409, {"title": "Conflict", "detail": "another attempt holds the run"}
            return getattr(self, "_" + match[3])(body)

    def _claim(self, wait_seconds: float) -> tuple[int, Any]:
        if self.unknown_worker:
            self.unknown_worker = False
            return 404, {"title": "Not found", "detail": "no such worker"}
        server = self._server
        self.changed.wait_for(lambda: self.claims or self._server is not server, wait_seconds)
        if not self.claims:
            return 204, None
        return 200, self.claims.pop(0).model_dump(mode="json")

    def _heartbeat(self, body: bytes) -> tuple[int, Any]:
        HeartbeatRequest.model_validate_json(body)
        self.heartbeats += 1
        return 200, {"cancel": self.cancel, "lease_seconds": 60, "spent": self.spent}

    def _reports(self, body: bytes) -> tuple[int, Any]:
        batch = ReportBatch.model_validate_json(body)
        if any(self.refuses(report) for report in batch.reports):
            return 422, {"title": "Unprocessable", "detail": "a report is not understood"}
        self.batches.append(len(batch.reports))
        new = [report for report in batch.reports if report.id not in self.reports]
        self.reports.update((report.id, report) for report in new)
        repeated = len(batch.reports) - len(new)
        self.repeated += repeated
        return 200, {"accepted": len(new), "repeated": repeated}

    def _finish(self, body: bytes) -> tuple[int, Any]:
        self.finishes.append(FinishRequest.model_validate_json(body))
        return 200, {}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    fake: FakeApi


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    # HTTP/1.0: a stopped fake must not go on answering on connections kept alive.
    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            status, answer = self.server.fake.answer(self.path, body)
        except ValueError as error:
            status, answer = 422, {"title": "Unprocessable", "detail": str(error)}
        fake = self.server.fake
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            if answer is not None:
                self.wfile.write(json.dumps(answer).encode())
        with fake.changed:
            fake.changed.notify_all()

    def log_message(self, *arguments: Any) -> None:
        """Silent."""


@pytest.fixture
def fake_api() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.stop()


@pytest.fixture
def repository() -> Path:
    return Path(__file__).parents[2]
