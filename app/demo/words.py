"""How the demo writes numbers, times and curves."""

from __future__ import annotations

from collections.abc import Iterable

BARS = "▁▂▃▄▅▆▇█"
DIGITS = "01234567"


def score(value: float | None) -> str:
    """A reward with two places; a dash where it is not known."""
    return "-" if value is None else f"{value:.2f}"


def duration(seconds: float) -> str:
    """``8 s`` or ``3 min 05 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def sparkline(values: Iterable[float | None], unicode: bool = True) -> str:
    """One character a value, on a fixed scale from 0 to 1; a space where it is not known."""
    marks = BARS if unicode else DIGITS
    return "".join(
        " " if value is None else marks[round(min(1.0, max(0.0, value)) * (len(marks) - 1))]
        for value in values
    )
