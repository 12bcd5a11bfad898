"""Keeps an attempt's lease and hears what the API wants."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from app.contract import Claim
from worker.client import ApiAway, ApiClient, LeaseLost, Refused

log = logging.getLogger("worker")


class Heartbeat:
    """Renews a lease on a thread of its own; tells once of a cancel, a spent budget, a lost lease.

    While the API is away it keeps trying: the lease may lapse meanwhile, but whether another
    attempt has begun only the API knows.
    """

    def __init__(
        self,
        claim: Claim,
        client: ApiClient,
        seconds: float,
        tell: Callable[[Literal["cancel", "lost"]], None],
        tell_spent: Callable[[str], None],
    ) -> None:
        self._claim = claim
        self._client = client
        self._seconds = seconds
        self._tell = tell
        self._tell_spent = tell_spent
        self._told_cancel = False
        self._told_spent = False
        self._away_since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after the call in flight."""
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                if not self._renew():
                    self._tell("lost")
                    return
            except Exception:
                # The thread has to live on: without it the lease lapses.
                log.exception("heartbeat failed run=%s", self._claim.run_id)

    def _renew(self) -> bool:
        """One heartbeat; False if the lease is lost."""
        claim = self._claim
        try:
            answer = self._client.heartbeat(
                claim.run_id, claim.attempt, claim.lease_token, retry_seconds=0
            )
        except LeaseLost as error:
            log.warning("lease lost run=%s: %s", claim.run_id, error)
            return False
        except Refused as refusal:
            log.warning("heartbeat refused run=%s: %s", claim.run_id, refusal)
            return refusal.status != 404
        except ApiAway as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.warning("the API is away, training goes on run=%s: %s", claim.run_id, error)
            return True
        if self._away_since is not None:
            log.info("the API is back after %.0f s", time.monotonic() - self._away_since)
            self._away_since = None
        if answer.cancel and not self._told_cancel:
            self._told_cancel = True
            self._tell("cancel")
        if answer.spent is not None and not self._told_spent:
            self._told_spent = True
            log.info("budget spent run=%s: %s", claim.run_id, answer.spent)
            self._tell_spent(answer.spent)
        return True
