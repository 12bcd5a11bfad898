"""The Makefile, with stand-ins for the programs that it calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PHASES = [
    "ruff format --check .",
    "ruff check .",
    "mypy",
    "python -m pytest -q tests --ignore=tests/e2e",
    "python -m pytest -q tests/e2e",
]
STAND_IN = """#!/bin/sh
call="$(basename "$0")${*:+ $*}"
echo "$call" >> "$CALLS"
[ "$call" != "$FAILS" ]
"""


def make(venv: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # Not as a part of the make that may run these tests.
    outside = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(
        ["make", *words, f"VENV={venv}"],
        cwd=ROOT,
        env=outside | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment that looks set up, of programs that only note their calls."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("ruff", "mypy", "python"):
        program = venv / "bin" / name
        program.write_text(STAND_IN)
        program.chmod(0o755)
    assert make(venv, "--touch", "setup").returncode == 0
    return venv


def test_the_phases_run_in_order_and_are_timed(venv: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    ended = make(venv, "test", CALLS=str(calls), FAILS="")
    assert ended.returncode == 0, ended.stderr
    assert calls.read_text().splitlines() == PHASES
    assert ended.stdout.count(": passed in ") == len(PHASES)


@pytest.mark.parametrize("failing", range(len(PHASES)))
def test_the_first_failure_ends_it_with_a_clear_line(
    venv: Path, tmp_path: Path, failing: int
) -> None:
    calls = tmp_path / "calls"
    ended = make(venv, "test", CALLS=str(calls), FAILS=PHASES[failing])
    assert ended.returncode != 0
    assert calls.read_text().splitlines() == PHASES[: failing + 1]
    assert ": FAILED after " in ended.stderr


def test_an_unusable_python_is_told_before_anything_is_made(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "cksum", "tr", "date"):
        (tools / name).symlink_to(_found(name))
    for name in ("python3", "python3.11", "python3.12"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    make_itself = _found("make")
    ended = subprocess.run(
        [make_itself, "setup", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    assert "no usable Python 3.11 or 3.12" in ended.stderr
    assert not (tmp_path / "venv").exists()


def _found(program: str) -> Path:
    found = shutil.which(program)
    assert found, program
    return Path(found)


def test_ci_runs_the_tests_and_stops_at_a_failure() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text("utf-8").splitlines()
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in lines
    assert lines[-1] == "exec make test"
