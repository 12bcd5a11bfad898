"""One training step and one debug rollout of the real service: ``one_step.py <data folder>``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.service import brief, service


def main(folder: Path) -> int:
    """0 when both ended well."""
    with service(folder) as client:
        debug = client.http.post(
            "/rollouts/debug",
            json={"task_id": "create_task_1", "deadline_seconds": 100},
            timeout=200,
        )
        config = {"rollout": {"n": 2}, "training": {"max_steps": 1, "micro_batch": 4}}
        run = client.wait(client.post_run(config=config), 400)
        print(debug.text, brief(run))
        learned = run["curves"]["train"]["points"]
        return 0 if run["status"] == "succeeded" and learned and debug.json()["reward"] == 1 else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
