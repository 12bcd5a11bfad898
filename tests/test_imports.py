"""What each package may import, read from the source and seen at run time."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "verl", "ray", "agentlightning", "vllm", "transformers"}
FORBIDDEN_IN_APP = HEAVY | {"worker", "tau2", "litellm"}
TORCH_FREE = ["worker/rollouts/**/*.py", "worker/debug.py"]
START_SECONDS = 2.0


def modules(*patterns: str) -> list[Path]:
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, wherever in the file it stands."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def named(path: Path, line: int, name: str) -> str:
    return f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_app_imports_neither_worker_nor_training() -> None:
    wrong = [
        named(path, line, name)
        for path in modules("app/**/*.py", "migrations/**/*.py")
        for line, name in imported(path)
        if name.split(".")[0] in FORBIDDEN_IN_APP
    ]
    assert wrong == []


def test_worker_imports_of_app_only_the_contract() -> None:
    wrong = [
        named(path, line, name)
        for path in modules("worker/**/*.py")
        for line, name in imported(path)
        if name.split(".")[0] in {"app", "migrations"}
        and not (name == "app.contract" or name.startswith("app.contract."))
    ]
    assert wrong == []


def test_debug_rollouts_import_no_training_library() -> None:
    files = modules(*TORCH_FREE)
    assert len(files) > 2
    wrong = [
        named(path, line, name)
        for path in files
        for line, name in imported(path)
        if name.split(".")[0] in HEAVY or name.startswith(("worker.training", "worker.cpu"))
    ]
    assert wrong == []


def loaded_after(statement: str) -> tuple[set[str], float]:
    """Top-level modules in a fresh interpreter after a statement, and the seconds it took."""
    program = (
        "import json, sys, time\n"
        "begin = time.perf_counter()\n"
        f"{statement}\n"
        "seconds = time.perf_counter() - begin\n"
        "names = sorted({name.split('.')[0] for name in sys.modules})\n"
        "print('\\n' + json.dumps([names, seconds]))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert child.returncode == 0, child.stderr
    names, seconds = json.loads(child.stdout.splitlines()[-1])
    return set(names), seconds


def test_importing_the_api_loads_nothing_heavy_and_is_quick() -> None:
    # The best of three: another process may have had the processor.
    tries = [loaded_after("import app.main") for _ in range(3)]
    assert tries[0][0] & FORBIDDEN_IN_APP == set()
    assert min(seconds for _, seconds in tries) < START_SECONDS


def test_the_claim_loop_loads_no_training_library() -> None:
    names, _ = loaded_after("import worker.loop, worker.client, worker.supervisor")
    assert names & (HEAVY | {"tau2", "litellm"}) == set()


@pytest.mark.slow
def test_the_debug_rollout_child_loads_no_training_library() -> None:
    files = modules(*TORCH_FREE)
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    everything = ", ".join(name.removesuffix(".__init__") for name in names)
    loaded, _ = loaded_after(f"import {everything}")
    assert "tau2" in loaded
    # τ² brings LiteLLM, which looks for transformers only when it counts certain tokens.
    assert loaded & HEAVY == set()
