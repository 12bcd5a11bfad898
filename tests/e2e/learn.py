"""Does it learn? Real runs of the default preset, from several seeds, and a negative control.

Run as a program it trains from seeds 0, 1 and 2 and the control, prints the table, and exits with
1 where a claim does not hold.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.e2e.service import Service, brief, service

SEEDS = (0, 1, 2)
RUN_SECONDS = 900

STARTS_AT_MOST = 0.5
ENDS_AT_LEAST = 1.0
"""Fewer than ten validation tasks: all of them."""
RISES_BY = 0.25
CONTROL_RISES_LESS_THAN = 0.15


@dataclass(frozen=True)
class Learning:
    """What a run's curves say. Rewards are τ²'s own, also where the trainer got a coin flip."""

    name: str
    run: dict[str, Any]
    train: list[float]
    validation: list[tuple[int, float]]

    @property
    def starts(self) -> float:
        """Greedy validation before training, over the tasks that do-nothing fails."""
        return self.validation[0][1]

    @property
    def ends(self) -> float:
        """The same after the last step."""
        return self.validation[-1][1]

    @property
    def first(self) -> float:
        """Mean training reward of the first three steps."""
        return sum(self.train[:3]) / 3

    @property
    def last(self) -> float:
        """Mean training reward of the last three steps."""
        return sum(self.train[-3:]) / 3

    @property
    def seconds(self) -> float:
        """From claim to end."""
        started, ended = (
            datetime.fromisoformat(self.run[name]) for name in ("started_at", "finished_at")
        )
        return (ended - started).total_seconds()

    def row(self) -> str:
        """One line of the table."""
        curve = " ".join(f"{reward:.2f}".lstrip("0") for reward in self.train)
        return (
            f"{self.name:8} {self.starts:.2f} → {self.ends:.2f}   "
            f"{self.first:.3f} → {self.last:.3f} ({self.last - self.first:+.3f})   "
            f"{self.seconds:4.0f} s   {curve}"
        )


def learn(client: Service, seed: int, *, control: bool = False) -> Learning:
    """Trains the default run from a seed and reads its curves from the API."""
    config: dict[str, Any] = {"seed": seed}
    if control:
        config["reward"] = {"control": "coin_flip"}
    name = f"coin {seed}" if control else f"seed {seed}"
    run_id = client.post_run(name=name, preset="tiny-cpu", config=config)
    run = client.wait(run_id, RUN_SECONDS)
    assert run["status"] == "succeeded", brief(run)
    curves = run["curves"]
    return Learning(
        name=name,
        run=run,
        train=[point["reward_mean"] for point in curves["train"]["points"]],
        validation=[
            (point["step"], point["reward_mean_nontrivial"])
            for point in curves["validation"]["points"]
        ],
    )


def faults(learned: Learning) -> list[str]:
    """Which parts of the learning claim do not hold."""
    found = []
    if learned.starts > STARTS_AT_MOST:
        found.append(f"validation starts at {learned.starts}, above {STARTS_AT_MOST}")
    if learned.ends < ENDS_AT_LEAST:
        found.append(f"validation ends at {learned.ends}, below {ENDS_AT_LEAST}")
    if learned.last - learned.first < RISES_BY:
        found.append(f"training rises by {learned.last - learned.first:.3f}, not {RISES_BY}")
    return found


def control_faults(learned: Learning) -> list[str]:
    """What the negative control shows that it must not."""
    rise = learned.last - learned.first
    return [] if rise < CONTROL_RISES_LESS_THAN else [f"the coin flip rises by {rise:.3f}"]


def main() -> int:
    """Runs everything and prints the table."""
    wrong = []
    with (
        tempfile.TemporaryDirectory(prefix="tautrain-learn-") as folder,
        service(Path(folder)) as client,
    ):
        print("run      validation    training, first three → last three steps       curve")
        for seed in SEEDS:
            learned = learn(client, seed)
            print(learned.row(), flush=True)
            wrong += [f"{learned.name}: {fault}" for fault in faults(learned)]
        learned = learn(client, 0, control=True)
        print(learned.row(), flush=True)
        wrong += [f"{learned.name}: {fault}" for fault in control_faults(learned)]
    for fault in wrong:
        print(f"does not hold: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
