"""τ² is imported quietly, from the data one chooses, and without the training stack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import tau2

ROOT = Path(__file__).parents[3]

IMPORT_ALL = """
import pkgutil, sys
reached = []
sys.addaudithook(lambda event, _: reached.append(event) if event in NETWORK else None)
NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
import worker.debug, worker.rollouts
for module in pkgutil.iter_modules(worker.rollouts.__path__):
    __import__(f"worker.rollouts.{module.name}")
from app.contract import Domain
from worker.rollouts.environments import surface
heavy = {"torch", "agentlightning", "verl", "ray"} & set(sys.modules)
assert not heavy, heavy
from worker.rollouts.baselines import task_baseline
assert task_baseline(Domain.MOCK, "create_task_1").reference == 1.0
assert not reached, reached
print(surface(Domain.MOCK).assistant_prompt)
"""


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_another_copy_of_the_data_is_used_in_silence_without_network_or_training_stack(
    tmp_path: Path,
) -> None:
    packaged = Path(tau2.__file__).parent / "data" / "tau2"
    (tmp_path / "tau2" / "domains").mkdir(parents=True)
    for source in packaged.iterdir():
        if source.name != "domains":
            (tmp_path / "tau2" / source.name).symlink_to(source)
    for source in (packaged / "domains").iterdir():
        (tmp_path / "tau2" / "domains" / source.name).symlink_to(source)
    mock = tmp_path / "tau2" / "domains" / "mock"
    mock.unlink()
    shutil.copytree(packaged / "domains" / "mock", mock)
    (mock / "policy.md").write_text("Always be kind to whales.")
    done = run(IMPORT_ALL, TAU2_DATA_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Always be kind to whales." in done.stdout
    assert done.stderr == ""


def test_a_data_folder_without_data_is_refused_by_its_name(tmp_path: Path) -> None:
    done = run("import worker.rollouts", TAU2_DATA_DIR=str(tmp_path))
    assert done.returncode != 0
    assert "TAU2_DATA_DIR" in done.stderr
    assert str(tmp_path) in done.stderr
