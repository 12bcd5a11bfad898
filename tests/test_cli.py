"""The command line, with real processes where it starts some."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app import cli
from app.demo.processes import Processes
from tests.real_processes import ROOT, WAIT_SECONDS, environment, unused_port, wait_for


def serve(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "serve"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_and_ends_in_order_on_a_signal(
    tmp_path: Path, signum: signal.Signals
) -> None:
    port = unused_port()
    processes = Processes()
    command = [sys.executable, "-m", "app.cli", "serve"]
    child = processes.start("api", command, environment(tmp_path / "data", port), tmp_path / "log")
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)

    def ready() -> bool:
        assert child.exit_code is None, child.log_tail()
        try:
            return client.get("/readyz").is_success
        except httpx.TransportError:
            return False

    try:
        wait_for(ready, "the API")
        assert client.get("/runs").json()["items"] == []
        child.process.send_signal(signum)
        assert child.process.wait(WAIT_SECONDS) in {128 + signum, -signum}
    finally:
        client.close()
        assert processes.stop() == []
    assert f"http://127.0.0.1:{port}" in child.log.read_text()
    assert "Application shutdown complete" in child.log.read_text()
    assert "Traceback" not in child.log.read_text()
    assert "Aborted" not in child.log.read_text()


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = serve(environment(tmp_path / "data", port))
    assert ended.returncode == 1
    lines = (ended.stdout + ended.stderr).splitlines()
    assert len(lines) == 1
    assert "TAUTRAIN_PORT" in lines[0]
    assert str(port) in lines[0]
    assert not (tmp_path / "data").exists()


def test_a_wrong_setting_is_one_line_that_names_its_variable(tmp_path: Path) -> None:
    env = environment(tmp_path / "data", 0) | {"TAUTRAIN_PORT": "secret-word"}
    ended = serve(env)
    assert ended.returncode == 1
    assert ended.stderr.startswith("tautrain: TAUTRAIN_PORT: ")
    assert len(ended.stderr.splitlines()) == 1
    assert "secret-word" not in ended.stderr


def test_a_database_of_a_newer_revision_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with sqlite3.connect(tmp_path / "data" / "tautrain.db") as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('from_the_future')")
    database.close()
    ended = serve(environment(tmp_path / "data", unused_port()))
    assert ended.returncode == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    told_of = [line for line in ended.stderr.splitlines() if "from_the_future" in line]
    assert len(told_of) == 1


def a_file(data: Path) -> None:
    data.write_text("")


def below_a_file(data: Path) -> None:
    data.symlink_to("/dev/null/data")


def garbage(data: Path) -> None:
    data.mkdir()
    (data / "tautrain.db").write_bytes(b"garbage" * 1000)


def a_folder(data: Path) -> None:
    (data / "tautrain.db").mkdir(parents=True)


@pytest.mark.parametrize("prepare", [a_file, below_a_file, garbage, a_folder])
def test_a_data_folder_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    prepare(tmp_path / "data")
    ended = serve(environment(tmp_path / "data", unused_port()))
    assert ended.returncode == 1
    lines = (ended.stdout + ended.stderr).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("tautrain: TAUTRAIN_DATA_DIR: ")


@pytest.mark.parametrize(
    "url", ["nonsense", "nosuch://u:secret@h/d", "postgresql://u:secret@h:port/d", "sqlite+x:///y"]
)
def test_a_database_url_that_cannot_be_used_is_one_clear_line_without_its_password(
    tmp_path: Path, url: str
) -> None:
    env = environment(tmp_path / "data", unused_port()) | {"TAUTRAIN_DATABASE_URL": url}
    ended = serve(env)
    assert ended.returncode == 1
    lines = (ended.stdout + ended.stderr).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("tautrain: TAUTRAIN_DATABASE_URL: ")
    assert "secret" not in lines[0]


def test_the_version_is_shown() -> None:
    shown = CliRunner().invoke(cli.cli, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == f"tautrain {cli.version()}\n"


def becoming(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What the process would have become: words and environments. It stays what it is."""
    became: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda _, words, env: became.append((words, env)))
    for name in ("TAUTRAIN_URL", "TAUTRAIN_HOST", "TAUTRAIN_PORT"):
        monkeypatch.delenv(name, raising=False)
    return became


def without(*missing: str) -> Callable[..., Any]:
    found = importlib.util.find_spec
    return lambda name, package=None: None if name in missing else found(name, package)


def test_a_worker_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", without("torch", "ray"))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it started"))
    ended = CliRunner().invoke(cli.cli, ["worker"])
    assert ended.exit_code == 1
    assert "torch, ray" in ended.output
    assert "tautrain[cpu]" in ended.output


def test_the_worker_command_becomes_the_worker_with_its_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    became = becoming(monkeypatch)
    CliRunner().invoke(cli.cli, ["worker", "--once", "--name", "w1", "--help"])
    [(words, _)] = became
    assert words == [sys.executable, "-m", "worker", "--once", "--name", "w1", "--help"]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:8321"),
        ({"TAUTRAIN_URL": ""}, "http://127.0.0.1:8321"),
        ({"TAUTRAIN_PORT": "9000", "TAUTRAIN_HOST": "10.0.0.1"}, "http://10.0.0.1:9000"),
        ({"TAUTRAIN_PORT": "9000", "TAUTRAIN_URL": "http://api:80/"}, "http://api:80"),
    ],
)
def test_the_worker_goes_by_the_same_settings_as_the_api(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], url: str
) -> None:
    became = becoming(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name, value in {**given, "TAUTRAIN_DATA_DIR": "some/where"}.items():
        monkeypatch.setenv(name, value)
    CliRunner().invoke(cli.cli, ["worker"])
    [(_, environment_of_worker)] = became
    assert environment_of_worker["TAUTRAIN_URL"] == url
    assert environment_of_worker["TAUTRAIN_DATA_DIR"] == str(tmp_path / "some" / "where")
    assert environment_of_worker["PATH"] == os.environ["PATH"]


def test_a_worker_with_a_wrong_setting_is_one_line_that_names_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    became = becoming(monkeypatch)
    monkeypatch.setenv("TAUTRAIN_PORT", "secret-word")
    ended = CliRunner().invoke(cli.cli, ["worker"])
    assert ended.exit_code == 1
    assert ended.output.startswith("tautrain: TAUTRAIN_PORT: ")
    assert len(ended.output.splitlines()) == 1
    assert "secret-word" not in ended.output
    assert became == []
