"""The worker's loop: register, claim, run an attempt, and again, until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Literal

from app.contract import Claim, FinishRequest, RunError, WorkerRegistration
from worker.client import ApiAway, ApiClient, Backoff, Refused
from worker.processes import end_session
from worker.supervisor import Attempt, AttemptSettings, finish

log = logging.getLogger("worker")

CLAIM_SECONDS = 20.0
"""How long the API may hold a claim back."""

SHORTEST_POLL_SECONDS = 1.0
"""An API that does not hold claims back (it is stopping, say) is not asked more often."""

LATE_CLAIM_SECONDS = 2.0
"""How long a stopping worker waits for its claim in flight, to hand back what it may bring."""

SAY_AGAIN_SECONDS = 30.0
"""How often a worker that waits for the API says so."""

Claimed = Claim | ApiAway | Refused | None


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs to know besides how it runs attempts."""

    registration: WorkerRegistration
    attempts: AttemptSettings
    once: bool = False
    claim_seconds: float = CLAIM_SECONDS
    retry_cap_seconds: float = 5.0
    """Longest wait between two tries while the API is away."""


class Worker:
    """Claims runs and runs them, one at a time, on the main thread."""

    def __init__(self, settings: WorkerSettings, client: ApiClient) -> None:
        self._settings = settings
        self._client = client
        self._stopping = False
        self._attempt: Attempt | None = None
        self._inbox: SimpleQueue[tuple[Literal["claimed"], Claimed] | Literal["stop"]]
        self._inbox = SimpleQueue()

    def run(self) -> None:
        """Works until ``stop``, or with ``once`` until one attempt has ended."""
        while not self._told_to_stop():
            worker_id = self._register()
            if worker_id is None or not self._work(worker_id):
                return

    def stop(self) -> None:
        """Stops claiming and hands back the run in hand. May be called from a signal handler."""
        self._stopping = True
        self._inbox.put("stop")
        if self._attempt is not None:
            self._attempt.stop()

    def _told_to_stop(self) -> bool:
        return self._stopping

    def kill(self) -> None:
        """Ends the child's session at once, telling nobody."""
        sid = self._attempt.sid if self._attempt is not None else None
        if sid is not None:
            end_session(sid, grace_seconds=0)

    def _register(self) -> str | None:
        """Registers, waiting for the API as long as it takes; None when told to stop."""
        registration = self._settings.registration
        backoff = Backoff(cap=self._settings.retry_cap_seconds)
        said_at = float("-inf")
        while not self._told_to_stop():
            try:
                worker_id = self._client.register(registration, retry_seconds=0)
            except (ApiAway, Refused) as error:
                if time.monotonic() - said_at >= SAY_AGAIN_SECONDS:
                    said_at = time.monotonic()
                    log.warning(
                        "waiting for the API at %s: %s", self._settings.attempts.api_url, error
                    )
                self._pause(backoff.next())
            else:
                log.info(
                    "registered worker=%s name=%s engines=%s cpus=%d gpus=%d",
                    worker_id,
                    registration.name,
                    ",".join(registration.engines),
                    registration.cpus,
                    registration.gpus,
                )
                return worker_id
        return None

    def _work(self, worker_id: str) -> bool:
        """Claims and runs; True when the worker has to register again, False when it is over."""
        backoff = Backoff(cap=self._settings.retry_cap_seconds)
        away = False
        while not self._told_to_stop():
            asked_at = time.monotonic()
            claimed = self._claim(worker_id)
            if isinstance(claimed, Refused) and claimed.status == 404:
                log.warning("the API does not know this worker any more: registering again")
                return True
            if isinstance(claimed, ApiAway | Refused):
                if not away:
                    log.warning("cannot claim, trying on: %s", claimed)
                away = True
                self._pause(backoff.next())
                continue
            if away:
                log.info("the API is back")
            away = False
            backoff.reset()
            if claimed is None:
                if time.monotonic() - asked_at < SHORTEST_POLL_SECONDS:
                    self._pause(SHORTEST_POLL_SECONDS)
                continue
            if self._told_to_stop():
                self._end(claimed, "handed_back")
                return False
            self._run_attempt(claimed)
            if self._settings.once:
                return False
        return False

    def _run_attempt(self, claim: Claim) -> None:
        log.info("claimed run=%s attempt=%d name=%s", claim.run_id, claim.attempt, claim.name)
        self._attempt = attempt = Attempt(claim, self._client, self._settings.attempts)
        if self._told_to_stop():
            attempt.stop()
        try:
            attempt.run()
        except Exception as error:
            # A fault of ours must not stop the queue; the run says what it was.
            log.exception("attempt failed run=%s", claim.run_id)
            problem = RunError(code="worker_error", message=f"{type(error).__name__}: {error}")
            self._end(claim, "failed", problem)
        finally:
            self._attempt = None

    def _end(
        self,
        claim: Claim,
        status: Literal["failed", "handed_back"],
        error: RunError | None = None,
    ) -> None:
        """Ends a claim that no attempt ends: one that came late, or met a fault of ours."""
        request = FinishRequest(lease_token=claim.lease_token, status=status, error=error)
        finish(self._client, claim, request, lambda: self._settings.attempts.stop_seconds)

    def _claim(self, worker_id: str) -> Claimed:
        """One long poll, on a thread, so that a signal does not have to wait for its end."""
        answer: SimpleQueue[tuple[Literal["claimed"], Claimed] | Literal["stop"]] = SimpleQueue()
        self._inbox = answer
        if self._told_to_stop():
            return None

        def ask() -> None:
            try:
                claimed: Claimed = self._client.claim(worker_id, self._settings.claim_seconds)
            except (ApiAway, Refused) as error:
                claimed = error
            except Exception as error:
                # Whatever it is, the main thread waits for an answer.
                log.exception("cannot claim")
                claimed = ApiAway(str(error))
            answer.put(("claimed", claimed))

        threading.Thread(target=ask, name="claim", daemon=True).start()
        first = answer.get()
        if first != "stop":
            return first[1]
        try:
            second = answer.get(timeout=LATE_CLAIM_SECONDS)
        except Empty:
            return None
        return None if second == "stop" else second[1]

    def _pause(self, seconds: float) -> None:
        """Waits, but not on when told to stop."""
        self._inbox = SimpleQueue()
        if self._told_to_stop():
            return
        try:
            self._inbox.get(timeout=seconds)
        except Empty:
            return


def stop_on_signals(worker: Worker, leave: Callable[[int], None] = os._exit) -> None:
    """SIGTERM and SIGINT: the first stops the worker in good order, the second at once."""
    told = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told += 1
        if told == 1:
            log.info("%s: stopping; once more ends at once", signal.Signals(number).name)
            worker.stop()
        else:
            worker.kill()
            leave(128 + number)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
