"""The error that says a run cannot be started as it is configured."""

from __future__ import annotations

TRAINING_FAILED = "training_failed"
"""Error code: an exception, or the death of a process, ended training."""


class ConfigRefused(Exception):
    """VERL, τ² or a model does not accept what the run asks for; the message says what."""
