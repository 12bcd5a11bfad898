"""One attempt from claim to finish: checks, child, heartbeats, and the end."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from app.contract import HEARTBEAT_SECONDS, Claim, Engine, FinishRequest, OpenAIUser, RunError
from worker.child_log import secrets_of
from worker.client import ApiAway, ApiClient, LeaseLost, Refused
from worker.environment import child_environment
from worker.handover import AttemptInput, AttemptResult
from worker.heartbeat import Heartbeat
from worker.outbox import ship_leftovers
from worker.preflight import preflight
from worker.reporter import Reporter
from worker.session import ATTEMPT_COMMAND, ChildExit, ChildSession
from worker.verdict import Asked, verdict

log = logging.getLogger("worker")

Happening = Literal["exited", "cancel", "lost", "stop"]
"""What ends an attempt: its child, the API's cancel, a lost lease, a worker that is to stop."""

_ASKED: Mapping[Happening, Asked] = {"cancel": "cancelled", "stop": "handed_back"}

SLICE_SECONDS = 5.0
"""How often the wait for an API that is away is broken off to see whether to stop waiting."""


@dataclass(frozen=True)
class AttemptSettings:
    """How a worker runs attempts. Times in seconds."""

    api_url: str
    data_dir: Path
    engines: Collection[Engine]
    command: Sequence[str] = ATTEMPT_COMMAND
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    leader_seconds: float = 12.0
    """What the child has after SIGTERM to put its house in order, before its session ends."""
    grace_seconds: float = 8.0
    """What its session has after SIGTERM before SIGKILL. With the above: less than 30."""
    away_seconds: float = 600.0
    """How long the last reports, and then the finish, are tried while the API is away."""
    stop_seconds: float = 5.0
    """The same when the worker is to stop."""


class Attempt:
    """One claimed run on this worker.

    Make and run it on the main thread: the child dies with the thread that started it.
    """

    def __init__(self, claim: Claim, client: ApiClient, settings: AttemptSettings) -> None:
        self.claim = claim
        self._client = client
        self._settings = settings
        self._inbox: SimpleQueue[Happening] = SimpleQueue()
        self._stopping = False
        self._session: ChildSession | None = None

    @property
    def sid(self) -> int | None:
        """The child's session while it lives."""
        return None if self._session is None else self._session.sid

    def stop(self) -> None:
        """Ends the attempt and hands the run back. May be called from a signal handler."""
        self._stopping = True
        self._inbox.put("stop")

    def run(self) -> None:
        """Runs the attempt to its end and tells the API how it ended."""
        claim, settings = self.claim, self._settings
        problem = preflight(claim.config, settings.environment, settings.engines)
        if problem is not None:
            self._finish(self._failed(problem))
            return
        handover = AttemptInput.of(claim, api_url=settings.api_url, data_dir=settings.data_dir)
        heartbeat = Heartbeat(
            claim, self._client, settings.heartbeat_seconds, self._inbox.put, handover.tell_spent
        )
        try:
            reporter = Reporter(handover.reporter_config(), source="worker")
            try:
                handover.write()
                self._session = self._start(handover, reporter)
            except OSError as error:
                message = f"The worker cannot start the training process: {error}"
                self._finish(self._failed(RunError(code="cannot_start", message=message)))
                return
            try:
                happening, ended = self._see_through(self._session)
            finally:
                # Whatever went wrong in there, no session stays behind.
                self._session.collect(grace_seconds=0)
                self._session = None
            if happening == "lost" or not self._ship_last_reports(handover, reporter):
                reporter.close(timeout=0)
                # Nobody will ever take these reports.
                shutil.rmtree(handover.spool_dir, ignore_errors=True)
                return
            result = AttemptResult.read(handover.attempt_dir)
            self._finish(verdict(claim.lease_token, result, ended, _ASKED.get(happening)))
        finally:
            heartbeat.stop()

    def _start(self, handover: AttemptInput, reporter: Reporter) -> ChildSession:
        claim, settings = self.claim, self._settings
        session = ChildSession(
            [*settings.command, str(handover.path)],
            directory=handover.attempt_dir,
            environment=child_environment(settings.environment, claim.config, os.getpid()),
            on_lines=reporter.log,
            secrets=(claim.lease_token, *self._user_key()),
        )
        log.info("started run=%s attempt=%d pid=%d", claim.run_id, claim.attempt, session.sid)
        return session

    def _user_key(self) -> tuple[str, ...]:
        """The user simulator's key: the config may name a variable that does not look like one."""
        user = self.claim.config.user_simulator
        if not isinstance(user, OpenAIUser):
            return ()
        return secrets_of(self._settings.environment, named=(user.api_key_env,))

    def _see_through(self, session: ChildSession) -> tuple[Happening, ChildExit]:
        """Waits for what ends the attempt and ends the session."""
        settings = self._settings
        session.notify(lambda: self._inbox.put("exited"))
        happening = self._inbox.get()
        if happening != "exited":
            log.info("ending run=%s because=%s", self.claim.run_id, happening)
            leader_seconds = 0.0 if happening == "lost" else settings.leader_seconds
            session.end(settings.grace_seconds, leader_seconds=leader_seconds)
        return happening, session.collect(settings.grace_seconds)

    def _ship_last_reports(self, handover: AttemptInput, reporter: Reporter) -> bool:
        """Ships what the ended processes left behind; False if the lease is lost."""
        claim = self.claim
        started = time.monotonic()
        reporter.close(timeout=min(SLICE_SECONDS, self._patience()))
        while True:
            remaining = started + self._patience() - time.monotonic()
            try:
                kept = ship_leftovers(
                    handover.spool_dir,
                    self._client,
                    claim.run_id,
                    claim.attempt,
                    claim.lease_token,
                    timeout=min(SLICE_SECONDS, max(0.0, remaining)),
                )
            except LeaseLost as error:
                log.warning("lease lost run=%s: %s", claim.run_id, error)
                return False
            if not kept:
                return True
            if remaining <= SLICE_SECONDS:
                log.error("reports of run=%s stay in %s", claim.run_id, handover.spool_dir)
                return True

    def _finish(self, request: FinishRequest) -> None:
        finish(self._client, self.claim, request, self._patience)

    def _patience(self) -> float:
        """How long to wait for the API, in seconds: not long when the worker is to stop."""
        settings = self._settings
        return settings.stop_seconds if self._stopping else settings.away_seconds

    def _failed(self, error: RunError) -> FinishRequest:
        return FinishRequest(lease_token=self.claim.lease_token, status="failed", error=error)


def finish(
    client: ApiClient, claim: Claim, request: FinishRequest, patience: Callable[[], float]
) -> None:
    """Tells the API the end of an attempt, for as long as ``patience()`` says, in seconds.

    What cannot be told is logged; the lease then lapses and the API decides.
    """
    error = request.error
    log.log(
        logging.ERROR if error is not None else logging.INFO,
        "ended run=%s attempt=%d status=%s code=%s%s",
        claim.run_id,
        claim.attempt,
        request.status,
        error.code if error is not None else "-",
        f": {error.message}" if error is not None else "",
    )
    started = time.monotonic()
    while True:
        remaining = started + patience() - time.monotonic()
        try:
            client.finish(
                claim.run_id,
                claim.attempt,
                request,
                retry_seconds=min(SLICE_SECONDS, max(0.0, remaining)),
            )
        except LeaseLost as lost:
            log.warning("the end of run=%s is not wanted: %s", claim.run_id, lost)
        except Refused as refusal:
            log.error("the end of run=%s is refused: %s", claim.run_id, refusal)
        except ApiAway as away:
            if remaining > SLICE_SECONDS:
                continue
            log.error("the end of run=%s could not be told: %s", claim.run_id, away)
        return
