"""What the training processes say to the API, without ever waiting for it.

A ``Reporter`` lives in the child process, in forked runners and in Ray actors. Each call writes
one line to a spool file of its own process and returns; a thread ships the file.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError

from app.contract import (
    BaselinesReport,
    CheckpointRemovedReport,
    CheckpointReport,
    EventReport,
    LogReport,
    MetricsReport,
    Phase,
    PlanReport,
    ProgressReport,
    Report,
    RolloutDoc,
    RolloutReport,
    TaskBaseline,
)
from worker.outbox import Outbox, ReporterConfig, ship_leftovers

__all__ = ["Reporter", "ReporterConfig", "ship_leftovers"]

_reporters: weakref.WeakSet[Reporter] = weakref.WeakSet()


class Reporter:
    """Reports of one process. Cheap to make: file and thread come with the first report.

    May be pickled (the copy is a new reporter with the same config) and used after a fork (the
    forked process gets a spool file and a thread of its own).
    """

    def __init__(self, config: ReporterConfig, source: str = "child") -> None:
        self.config = config
        self.source = source
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None
        _reporters.add(self)

    def __reduce__(self) -> tuple[type[Reporter], tuple[ReporterConfig, str]]:
        return Reporter, (self.config, self.source)

    @property
    def lost(self) -> bool:
        """Whether the API said that this attempt is over; reports are then dropped."""
        outbox = self._outbox
        return outbox is not None and outbox.lost

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """The metrics of a step, as VERL logged them.

        NumPy scalars and tensors of one element become floats; what is no number is left out; NaN
        and infinity are left out and counted.
        """
        finite: dict[str, float] = {}
        non_finite = 0
        for name, value in values.items():
            number = as_number(value)
            if number is None:
                continue
            if math.isfinite(number):
                finite[str(name)] = number
            else:
                non_finite += 1
        if finite or non_finite:
            self._send(MetricsReport(id=_new_id(), step=step, values=finite, non_finite=non_finite))

    def rollout(self, rollout: RolloutDoc) -> None:
        """A finished rollout."""
        self._send(RolloutReport(id=_new_id(), rollout=rollout))

    def event(
        self,
        type: str,  # noqa: A002 - the contract's word
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Something worth telling a person; values that JSON does not know become text."""
        named = {str(name): value for name, value in (data or {}).items()}
        self._send(EventReport(id=_new_id(), type=type, data=named))

    def progress(
        self, phase: Phase, step: int = 0, epoch: int = 0, note: str | None = None
    ) -> None:
        """Where the attempt stands."""
        self._send(ProgressReport(id=_new_id(), phase=phase, step=step, epoch=epoch, note=note))

    def plan(
        self,
        *,
        train_tasks: Sequence[str],
        validation_tasks: Sequence[str],
        total_steps: int,
        train_rollouts_per_step: int,
        validation_rollouts: int,
    ) -> None:
        """What the attempt is going to do."""
        self._send(
            PlanReport(
                id=_new_id(),
                train_tasks=list(train_tasks),
                validation_tasks=list(validation_tasks),
                total_steps=total_steps,
                train_rollouts_per_step=train_rollouts_per_step,
                validation_rollouts=validation_rollouts,
            )
        )

    def baselines(self, tasks: Sequence[TaskBaseline]) -> None:
        """What doing nothing and the reference earn on the run's tasks."""
        self._send(BaselinesReport(id=_new_id(), tasks=list(tasks)))

    def checkpoint(
        self, *, step: int, path: str, size_bytes: int, validation_reward: float | None = None
    ) -> None:
        """A whole checkpoint on this machine's disk."""
        self._send(
            CheckpointReport(
                id=_new_id(),
                step=step,
                path=path,
                size_bytes=size_bytes,
                validation_reward=validation_reward,
            )
        )

    def checkpoint_removed(self, step: int) -> None:
        """A checkpoint that was reported is no longer there."""
        self._send(CheckpointRemovedReport(id=_new_id(), step=step))

    def log(self, lines: Sequence[str]) -> None:
        """Lines of output, without their line ends."""
        if lines:
            self._send(LogReport(id=_new_id(), lines=list(lines)))

    def flush(self, timeout: float = 10.0) -> bool:
        """Waits until all reports so far have arrived; False if not within ``timeout`` seconds."""
        outbox = self._outbox
        return outbox is None or outbox.flush(timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Flushes and stops; a later report starts anew. False if reports stay in the spool."""
        with self._lock:
            outbox, self._outbox = self._outbox, None
        return outbox is None or outbox.close(timeout)

    def _send(self, report: Report) -> None:
        line = as_json_line(report)
        with self._lock:
            if self._outbox is None:
                self._outbox = Outbox(self.config, self.source)
            self._outbox.append(line)

    def _forget_parent(self) -> None:
        """In a forked child: locks may be held by threads that do not exist here; start anew."""
        self._lock = threading.Lock()
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.abandon()


def as_number(value: object) -> float | None:
    """A float of anything that holds exactly one number, else None. Text is never a number."""
    item = getattr(value, "item", None)
    try:
        if callable(item):
            value = item()
        if value is None or isinstance(value, str | bytes | bytearray):
            return None
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def as_json_line(report: Report) -> bytes:
    """A report as one line of JSON; text that is not valid Unicode is repaired with U+FFFD."""
    try:
        return report.model_dump_json(fallback=str).encode()
    except (PydanticSerializationError, UnicodeError):
        whole = report.model_validate(_repaired(report.model_dump()))
        return whole.model_dump_json(fallback=str).encode()


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_repaired(key): _repaired(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_repaired(inner) for inner in value]
    return value


def _new_id() -> str:
    return "rp_" + uuid.uuid4().hex


def _forget_parents() -> None:
    for reporter in list(_reporters):
        reporter._forget_parent()


def _close_all() -> None:
    for reporter in list(_reporters):
        reporter.close(timeout=5.0)


os.register_at_fork(after_in_child=_forget_parents)
atexit.register(_close_all)
