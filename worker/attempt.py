"""One attempt of a run, in a process session of its own: ``python -m worker.attempt <claim.json>``.

Tasks, policy, baselines, then agentlightning's ``Trainer`` with VERL. What goes wrong is named in
``result.json``; a process that dies without one is named by the worker.
"""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path

from app.contract import Phase, RunError
from worker.guard import die_with_parent
from worker.handover import AttemptInput, AttemptResult
from worker.reporter import Reporter
from worker.training.refusal import TRAINING_FAILED, ConfigRefused

CONFIG_REFUSED = "config_refused"
"""Error code: VERL, τ² or the model's own config does not accept what the run asks for."""


TALKATIVE = ("agent_framework", "httpx", "httpx2", "LiteLLM", "LiteLLM Proxy")
"""Loggers that say several lines for each turn; the run's log would hold little else."""


def main(argv: list[str]) -> int:
    """Runs the attempt; 0 when training ended as planned."""
    attempt = AttemptInput.read(Path(argv[1]))
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    reporter = Reporter(attempt.reporter_config(), source="attempt")
    reporter.progress(Phase.STARTING, note="loading libraries")
    try:
        # Imported here: it takes ten seconds, and a person should see that something happens.
        from worker.training.assembly import train

        stop_reason = train(attempt, reporter)
        result = AttemptResult(status="succeeded", stop_reason=stop_reason)
    except ConfigRefused as refused:
        result = _failed(CONFIG_REFUSED, str(refused))
    except Exception as error:  # noqa: BLE001 it becomes the run's error
        traceback.print_exc()
        result = _failed(TRAINING_FAILED, _short(error))
    result.write(attempt.attempt_dir)
    reporter.close()
    return 0 if result.status == "succeeded" else 1


def _failed(code: str, message: str) -> AttemptResult:
    return AttemptResult(status="failed", error=RunError(code=code, message=message))


def _short(error: BaseException) -> str:
    """The cause at the bottom of Ray's wrapping: its first line, and its last where that differs.

    Ray puts a remote traceback into the text, whose last line says what was wrong.
    """
    cause = getattr(error, "cause", None) or error
    lines = f"{type(cause).__name__}: {cause}".strip().splitlines()
    return "\n".join(dict.fromkeys([lines[0], lines[-1]]))[:2000]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
