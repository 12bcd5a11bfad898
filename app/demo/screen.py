"""What the terminal shows while the run goes on: live where it can, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app.demo.view import RunView
from app.demo.words import duration, score, sparkline

CURVE_POINTS = 40
"""Most steps a sparkline shows: the newest."""

PLAIN_LINE_SECONDS = 10
"""How often plain output says where the run stands."""


class Screen:
    """Lines that stay, above a picture of the moment that changes in place.

    Without a terminal there is no picture; a line every ten seconds says where the run stands.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._said_at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.freeze()

    def freeze(self) -> None:
        """Takes the picture away; only lines follow."""
        self._live.stop()

    def say(self, lines: Iterable[str]) -> None:
        """Prints lines that stay."""
        for line in lines:
            # Names and messages may hold brackets and escapes: they are text, not markup.
            self._console.print(Text(printable(line)), soft_wrap=True)

    def show(self, run: RunView, elapsed: float) -> None:
        """Shows the moment."""
        if self._live.is_started:
            unicode = self._console.encoding.lower().startswith("utf")
            self._live.update(picture(run, elapsed, unicode), refresh=True)
        elif (
            not self._console.is_terminal
            and not run.ended
            and elapsed - self._said_at >= PLAIN_LINE_SECONDS
        ):
            self._said_at = elapsed
            self.say([f"{duration(elapsed):>11}  ... {standing(run)}"])

    def wait(self, what: str, elapsed: float) -> None:
        """Shows that something is waited for, before there is a run."""
        if self._live.is_started:
            self._live.update(Text(f"{what} … {duration(elapsed)}"), refresh=True)


def printable(line: str) -> str:
    """The line without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == " " else "\N{REPLACEMENT CHARACTER}" for c in line)


def standing(run: RunView) -> str:
    """Where the run stands, on one line."""
    parts = [run.phase or run.status]
    if run.step and run.total_steps:
        parts.append(f"step {run.step} of {run.total_steps}")
    parts.append(f"{run.rollouts} rollouts")
    if run.not_judged:
        parts.append(f"{run.not_judged} not judged")
    return ", ".join(parts)


def picture(run: RunView, elapsed: float, unicode: bool) -> RenderableType:
    """Standing, progress bar, both curves."""
    bar = Table.grid(padding=(0, 2))
    remaining = "" if run.eta_seconds is None else f"about {duration(run.eta_seconds)} left"
    bar.add_row(
        ProgressBar(total=run.total_steps, completed=run.step or 0, width=40),
        Text(f"{duration(elapsed)} {remaining}"),
    )
    curves = Table.grid(padding=(0, 2))
    for name, rewards, baselines in (
        ("training", [point.reward for point in run.train], run.train_baselines),
        ("validation", [point.reward for point in run.validations], run.validation_baselines),
    ):
        if rewards:
            curves.add_row(
                name,
                sparkline(rewards[-CURVE_POINTS:], unicode),
                f"{score(rewards[0])} to {score(rewards[-1])}",
                f"do-nothing {score(baselines.do_nothing)}, reference {score(baselines.reference)}",
            )
    return Group(Text(f"{run.id}  {standing(run)}", style="bold"), bar, curves)
