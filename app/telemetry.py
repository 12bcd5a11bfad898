"""Counters for ``GET /metrics``, in Prometheus' text format. Nothing is sent anywhere."""

from __future__ import annotations

from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from sqlalchemy import func
from sqlmodel import Session, col, select

from app.contract import LEASE_SECONDS, RunStatus
from app.tables import Run, Worker

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Telemetry:
    """The counters of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reports = Counter(
            "tautrain_reports_total",
            "Reports of workers, by whether they were new.",
            ["result"],
            registry=self._registry,
        )
        self.claims = Counter(
            "tautrain_claims_total", "Runs given to workers.", registry=self._registry
        )
        self.lapses = Counter(
            "tautrain_lapsed_leases_total", "Attempts that lapsed.", registry=self._registry
        )
        self.debug_rollouts = Counter(
            "tautrain_debug_rollouts_total",
            "Debug rollouts, by outcome.",
            ["outcome"],
            registry=self._registry,
        )
        self._runs = Gauge("tautrain_runs", "Runs, by status.", ["status"], registry=self._registry)
        self._workers = Gauge("tautrain_workers_live", "Live workers.", registry=self._registry)
        self.waiting = Gauge(
            "tautrain_claims_waiting", "Workers waiting for a run.", registry=self._registry
        )

    def text(self, session: Session, now: datetime) -> bytes:
        """All figures as of now."""
        counts = select(Run.status, func.count()).group_by(Run.status)
        found: dict[str, int] = dict(session.exec(counts).all())
        for status in RunStatus:
            self._runs.labels(status=status.value).set(found.get(status.value, 0))
        since = now - timedelta(seconds=LEASE_SECONDS)
        live = select(func.count()).select_from(Worker).where(col(Worker.seen_at) >= since)
        self._workers.set(session.exec(live).one())
        return generate_latest(self._registry)
