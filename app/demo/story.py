"""The lines that stay on the screen: each change of a run, told once."""

from __future__ import annotations

from app.contract import Phase, RunStatus
from app.demo.view import RunView, TrainPoint, Validation
from app.demo.words import duration, score

PHASES = {
    Phase.STARTING: "starting the trainer (Ray, the LLM proxy, the rollout server)",
    Phase.WARM_START: "warm start: supervised learning, so that the policy succeeds sometimes",
    Phase.BASELINES: "baselines: what doing nothing and the reference actions earn",
    Phase.VALIDATING: "validating",
    Phase.ROLLOUT: "training: rollouts, then an update, step by step",
    Phase.UPDATE: "training: an update",
    Phase.CHECKPOINT: "writing a checkpoint",
}

WITHIN_A_STEP = frozenset({Phase.ROLLOUT, Phase.UPDATE})
"""A change between these is told by the line of the finished step."""


SETTLED_SECONDS = 1.0
"""A point that is past and has not changed for so long is complete: rollouts arrive in batches."""


class Story:
    """Remembers what was told, and the seconds seen in each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._status: str | None = None
        self._phase: str | None = None
        self._attempt: int | None = None
        self._told: set[tuple[int, bool]] = set()
        self._unchanged_since: dict[tuple[int, bool], tuple[TrainPoint | Validation, float]] = {}
        self._at = 0.0

    def lines(self, run: RunView, elapsed: float) -> list[str]:
        """What is new in this document, ``elapsed`` seconds after the run was queued."""
        self._count_seconds(elapsed)
        told = [*self._status_line(run), *self._points(run, elapsed), *self._phase_line(run)]
        self._status, self._phase = run.status, run.phase
        return [f"{duration(elapsed):>11}  {line}" for line in told]

    def _count_seconds(self, elapsed: float) -> None:
        # Between two documents the run was where the first one said.
        spent_in = self._phase or self._status
        if spent_in:
            self.seconds[spent_in] = self.seconds.get(spent_in, 0.0) + elapsed - self._at
        self._at = elapsed

    def _status_line(self, run: RunView) -> list[str]:
        told = []
        if run.attempt and self._attempt and run.attempt > self._attempt:
            told.append(f"attempt {run.attempt} begins: the one before was lost")
        self._attempt = run.attempt or self._attempt
        if run.status == self._status:
            return told
        if run.status == RunStatus.QUEUED:
            return [*told, "queued: waiting for the worker"]
        if run.status == RunStatus.RUNNING:
            return [*told, "claimed by the worker"]
        return [*told, f"run {run.status}"]

    def _points(self, run: RunView, elapsed: float) -> list[str]:
        """Finished steps and validations in the order in which they happened."""
        points: dict[tuple[int, bool], TrainPoint | Validation] = {
            **{(point.step, False): point for point in run.train},
            **{(point.step, True): point for point in run.validations},
        }
        told = []
        for key in sorted(points.keys() - self._told):
            point = points[key]
            if not self._settled(key, point, run, elapsed):
                continue
            self._told.add(key)
            told.append(
                validation_line(run, point)
                if isinstance(point, Validation)
                else step_line(run, point)
            )
        return told

    def _settled(
        self, key: tuple[int, bool], point: TrainPoint | Validation, run: RunView, elapsed: float
    ) -> bool:
        before, since = self._unchanged_since.get(key, (None, elapsed))
        if point != before:
            since = elapsed
            self._unchanged_since[key] = (point, since)
        making = Phase.VALIDATING if isinstance(point, Validation) else Phase.ROLLOUT
        going_on = run.phase == making and (run.step or 0) <= point.step
        return run.ended or (not going_on and elapsed - since >= SETTLED_SECONDS)

    def _phase_line(self, run: RunView) -> list[str]:
        if run.phase is None or run.phase == self._phase or run.ended:
            return []
        if run.phase in WITHIN_A_STEP and self._phase in WITHIN_A_STEP:
            return []
        # A phase that a newer worker reports is shown by its name.
        return [next((text for phase, text in PHASES.items() if phase == run.phase), run.phase)]


def step_line(run: RunView, point: TrainPoint) -> str:
    """The mean reward of one training step, with its count."""
    total = f" of {run.total_steps}" if run.total_steps else ""
    return f"step {point.step}{total}: training reward {score(point.reward)}{_judged(point)}"


def _judged(point: TrainPoint) -> str:
    if point.rollouts is None:
        return ""
    # Of what was planned where it is known: a rollout that was lost is missing, not judged.
    of = max(point.rollouts, point.planned or 0)
    if point.judged is None or point.judged == of:
        return f" over {point.rollouts} rollouts"
    return f" over {point.judged} judged of {of} rollouts"


def validation_line(run: RunView, validation: Validation) -> str:
    """A validation with its coverage and baselines."""
    when = "before training" if validation.step == 0 else f"after step {validation.step}"
    judged = (
        ""
        if validation.planned is None
        else f" ({validation.judged} of {validation.planned} judged"
        f"{'' if validation.complete else ': incomplete'})"
    )
    baselines = run.validation_baselines
    return (
        f"validation {when}: {score(validation.reward)}{judged}, on tasks that do-nothing fails "
        f"{score(validation.nontrivial)}; do-nothing {score(baselines.do_nothing)}, "
        f"reference {score(baselines.reference)}"
    )
