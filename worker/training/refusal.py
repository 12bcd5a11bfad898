"""The error that says a run cannot be started as it is configured."""

from __future__ import annotations


class ConfigRefused(Exception):
    """VERL, τ² or a model does not accept what the run asks for; the message says what."""
