"""Ships a process's spool to the API, in order, in the background.

The producing side only appends to a file and never waits for the API; a daemon thread sends
batches and goes on with back-off for as long as the API is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.contract import MAX_REPORTS_PER_BATCH
from worker.client import ApiAway, ApiClient, Backoff, LeaseLost, Refused
from worker.spool import SUFFIX, SpoolReader, SpoolWriter

log = logging.getLogger("worker.outbox")

MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Most bytes of one batch; a larger report goes alone."""

RETRY_CAP_SECONDS = 5.0
"""Longest wait between two tries, and so how late reports start to flow after an outage."""

DISK_RETRY_SECONDS = 1.0
"""How often lines that the disk refused are tried again."""

BAD_REPORT = frozenset({400, 413, 422})
"""Refusals that are about the reports themselves, not about the caller."""


@dataclass(frozen=True)
class ReporterConfig:
    """Where the reports of one attempt go. Picklable: actors and runners get it as it is."""

    api_url: str
    run_id: str
    attempt: int
    lease_token: str = field(repr=False)
    spool_dir: str


class Outbox:
    """One process's spool file and the thread that ships it."""

    def __init__(self, config: ReporterConfig, source: str) -> None:
        self._config = config
        self._writer = SpoolWriter(Path(config.spool_dir), source)
        self._reader = SpoolReader(self._writer.path)
        self._changed = threading.Condition()
        self._closed = False
        self.lost = False
        self._thread = threading.Thread(target=self._ship, name="reports", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The spool file."""
        return self._writer.path

    def append(self, line: bytes) -> None:
        """Puts one report into the spool. Reports after a lost lease are of no use: dropped."""
        with self._changed:
            if self.lost or self._closed:
                return
            self._writer.append(line)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Waits until all appended so far has arrived; False if it has not within ``timeout``."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost or self._drained(), timeout)
            return self._drained()

    def close(self, timeout: float) -> bool:
        """Flushes, stops the thread, and deletes the file if all of it has arrived."""
        arrived = self.flush(timeout)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(1.0)
        if not self._thread.is_alive():
            if arrived:
                self._reader.remove()
            self._reader.close()
        self._writer.close()
        return arrived

    def abandon(self) -> None:
        """Lets go of a parent's outbox after a fork, without touching its locks or its lines."""
        self._writer.close()

    def _drained(self) -> bool:
        return self._reader.acknowledged >= self._writer.size and not self._writer.unwritten

    def _ship(self) -> None:
        client = ApiClient(self._config.api_url, retry_seconds=0)
        backoff = Backoff(cap=RETRY_CAP_SECONDS)
        with client:
            while self._wait_for_lines():
                try:
                    self._ship_batch(client)
                    backoff.reset()
                    continue
                except LeaseLost as error:
                    log.warning("reports are no longer wanted: %s", error)
                    with self._changed:
                        self.lost = True
                        self._changed.notify_all()
                    return
                except (ApiAway, Refused) as error:
                    log.debug("reports wait: %s", error)
                except Exception:
                    # The thread has to live on: reports of the whole process depend on it.
                    log.exception("reports could not be sent")
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, backoff.next())

    def _wait_for_lines(self) -> bool:
        """Waits until there is a line to ship; False when the outbox is closed."""
        with self._changed:
            while not self._closed:
                if self._writer.unwritten:
                    self._writer.write_out()
                if self._reader.acknowledged < self._writer.size:
                    return True
                self._changed.wait(DISK_RETRY_SECONDS if self._writer.unwritten else None)
            return False

    def _ship_batch(self, client: ApiClient) -> None:
        lines, end = self._reader.batch(MAX_REPORTS_PER_BATCH, MAX_BATCH_BYTES)
        config = self._config
        deliver(client, config.run_id, config.attempt, config.lease_token, lines)
        with self._changed:
            self._reader.acknowledge(end)
            self._changed.notify_all()


def deliver(
    client: ApiClient, run_id: str, attempt: int, lease_token: str, lines: Sequence[bytes]
) -> int:
    """Sends report lines in order; a line that the API cannot take does not hold up the others.

    Returns the number of lines that were refused for what they are and so left out. Raises
    ``LeaseLost`` (also where the run has been deleted), ``ApiAway`` and ``Refused``.
    """
    if not lines:
        return 0
    try:
        client.send_report_lines(run_id, attempt, lease_token, lines)
    except Refused as refusal:
        if refusal.status == 404:
            raise LeaseLost(refusal.detail) from refusal
        if refusal.status not in BAD_REPORT:
            raise
        if len(lines) == 1:
            log.error("a report of %d bytes is left out: %s", len(lines[0]), refusal)
            return 1
        half = len(lines) // 2
        return deliver(client, run_id, attempt, lease_token, lines[:half]) + deliver(
            client, run_id, attempt, lease_token, lines[half:]
        )
    return 0


def ship_leftovers(
    spool_dir: Path,
    client: ApiClient,
    run_id: str,
    attempt: int,
    lease_token: str,
    *,
    timeout: float = 30.0,
) -> int:
    """Ships what processes that are gone left in the spool; returns the number of files kept.

    Files of living processes are not touched, torn last lines are ignored, and files that have
    arrived are deleted. Raises ``LeaseLost``.
    """
    deadline = time.monotonic() + timeout
    kept = 0
    for path in sorted(spool_dir.glob(f"*{SUFFIX}")):
        reader = SpoolReader(path)
        try:
            if reader.lock() and _drain(reader, client, run_id, attempt, lease_token, deadline):
                reader.remove()
            else:
                kept += 1
        finally:
            reader.close()
    return kept


def _drain(
    reader: SpoolReader,
    client: ApiClient,
    run_id: str,
    attempt: int,
    lease_token: str,
    deadline: float,
) -> bool:
    """Ships one file to its end; False if the deadline came first."""
    backoff = Backoff()
    while True:
        lines, end = reader.batch(MAX_REPORTS_PER_BATCH, MAX_BATCH_BYTES)
        if not lines:
            return True
        try:
            deliver(client, run_id, attempt, lease_token, lines)
        except (ApiAway, Refused) as error:
            delay = backoff.next()
            if time.monotonic() + delay > deadline:
                log.warning("reports stay in %s: %s", reader.path, error)
                return False
            time.sleep(delay)
        else:
            reader.acknowledge(end)
