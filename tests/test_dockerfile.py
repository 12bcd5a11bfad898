"""The Dockerfile against the tree, since the tests have no Docker engine to build it."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("api", "gpu-worker")


@dataclass
class Stage:
    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def arguments(self, keyword: str) -> list[str]:
        return [text for word, text in self.instructions if word == keyword]


def stages(text: str) -> dict[str, Stage]:
    """The stages by name. An unnamed stage, or a word before the first, is an error."""
    found: dict[str, Stage] = {}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    current: Stage | None = None
    for logical in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if not logical.strip():
            continue
        keyword, _, rest = logical.strip().partition(" ")
        if keyword.upper() == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", rest.strip())
            assert match, f"a stage without a name: {logical}"
            current = found[match[2]] = Stage(match[2], match[1])
        else:
            assert current, f"before the first stage: {logical}"
            current.instructions.append((keyword.upper(), rest.strip()))
    return found


def ignored(path: str, rules: list[str]) -> bool:
    """Whether .dockerignore keeps a path out: the last rule that fits it or a parent decides."""
    out = False
    parts = Path(path).parts
    candidates = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    for rule in rules:
        pattern = rule.removeprefix("!").strip("/")
        # fnmatch's star crosses slashes, which is stricter here: more is seen as kept out.
        patterns = [pattern, pattern.removeprefix("**/")]
        if any(fnmatch.fnmatch(c, p) for c in candidates for p in patterns):
            out = not rule.startswith("!")
    return out


def rules() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def copies(stage: Stage) -> list[tuple[str | None, str]]:
    """Pairs of the stage copied from (None: the tree) and the source."""
    pairs: list[tuple[str | None, str]] = []
    for text in stage.arguments("COPY"):
        words = shlex.split(text)
        origin = None
        while words[0].startswith("--"):
            flag = words.pop(0)
            if flag.startswith("--from="):
                origin = flag.removeprefix("--from=")
        pairs += [(origin, source) for source in words[:-1]]
    return pairs


DOCKERFILE = stages((ROOT / "Dockerfile").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_both_targets_are_there() -> None:
    assert set(TARGETS) <= set(DOCKERFILE)


def test_every_copied_path_is_in_the_tree_and_in_the_build_context() -> None:
    sources = [
        source for stage in DOCKERFILE.values() for origin, source in copies(stage) if not origin
    ]
    assert len(sources) >= 5
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if ignored(source, rules())] == []


def test_every_stage_copied_from_or_built_on_stands_earlier() -> None:
    seen: set[str] = set()
    for stage in DOCKERFILE.values():
        origins = {origin for origin, _ in copies(stage) if origin}
        assert origins <= seen, stage.name
        seen.add(stage.name)


@pytest.mark.parametrize("path", [".git/config", "data/tautrain.db", ".venv/bin/python", ".env"])
def test_what_is_private_or_large_stays_out_of_the_build_context(path: str) -> None:
    assert ignored(path, rules())


@pytest.mark.parametrize("path", ["app/main.py", "worker/rollouts/reward.py"])
def test_the_code_is_in_the_build_context(path: str) -> None:
    assert not ignored(path, rules())


@pytest.mark.parametrize(("target", "command"), [("api", "serve"), ("gpu-worker", "worker")])
def test_the_entry_point_is_a_command_of_the_console_script(target: str, command: str) -> None:
    from typer.main import get_command

    from app import cli

    words = json.loads(DOCKERFILE[target].arguments("ENTRYPOINT")[-1])
    assert words[0] in PROJECT["scripts"]
    assert PROJECT["scripts"][words[0]] == f"{cli.main.__module__}:{cli.main.__name__}"
    assert words[1:] == [command]
    assert command in get_command(cli.cli).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(("target", "pins"), [("api", "api.txt"), ("gpu-worker", "gpu.txt")])
def test_each_image_installs_its_own_pins(target: str, pins: str) -> None:
    assert (None, f"requirements/{pins}") in copies(DOCKERFILE[target])


@pytest.mark.parametrize("target", TARGETS)
def test_no_image_runs_as_root(target: str) -> None:
    user = DOCKERFILE[target].arguments("USER")[-1]
    assert user not in {"root", "0"}
    assert any(
        f"useradd --uid 10001 --create-home {user}" in run
        for run in DOCKERFILE[target].arguments("RUN")
    )


def test_the_api_image_listens_to_others_keeps_its_data_and_is_watched() -> None:
    api = DOCKERFILE["api"]
    environment = " ".join(api.arguments("ENV"))
    assert "TAUTRAIN_HOST=0.0.0.0" in environment
    assert "TAUTRAIN_DATA_DIR=/data" in environment
    assert api.arguments("VOLUME") == ["/data"]
    assert "/readyz" in api.arguments("HEALTHCHECK")[0]
