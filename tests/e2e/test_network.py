"""The claim that nothing leaves the machine, by looking at every packet that would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.service import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

ALLOWED: dict[str, str] = {}
"""Destinations that may be tried, each with its reason. None is."""


def _isolated(packets: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.e2e.isolated", str(packets), *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


def _has_to_work(environment: Mapping[str, str], user: int) -> bool:
    """Where a skip would be a claim that nobody looks at: in CI, and for root, who may do it."""
    return user == 0 or bool(environment.get("CI"))


@pytest.fixture(scope="module", autouse=True)
def _needs_a_network_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    tried = _isolated(tmp_path_factory.mktemp("probe") / "packets.json", "true")
    refused = tried.returncode != 0 and "unshare: " in tried.stderr
    if refused and not _has_to_work(os.environ, os.geteuid()):
        pytest.skip(f"this user may not make namespaces: {tried.stderr[-200:]}")
    assert tried.returncode == 0, tried.stderr


def test_only_a_person_without_the_right_to_namespaces_may_skip_this() -> None:
    assert _has_to_work({"CI": "true"}, 1000)
    assert _has_to_work({}, 0)
    assert not _has_to_work({"CI": ""}, 1000)


def test_the_recorder_sees_what_would_leave(tmp_path: Path) -> None:
    send = (
        "import socket\n"
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.7', 53))\n"
        "tcp = socket.socket(); tcp.settimeout(0.2)\n"
        "try: tcp.connect(('192.0.2.8', 443))\n"
        "except OSError: pass\n"
        "local = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "local.sendto(b'x', ('127.0.0.1', 9))\n"
    )
    assert _isolated(tmp_path / "packets.json", sys.executable, "-c", send).returncode == 0
    sent = json.loads((tmp_path / "packets.json").read_text())
    assert sent == ["tcp 192.0.2.8:443", "udp 192.0.2.7:53 asks for ?"]


def test_a_look_up_is_seen_by_the_name_that_was_asked_for(tmp_path: Path) -> None:
    before = Path("/etc/resolv.conf").read_bytes()
    ask = (
        "import socket\ntry: socket.getaddrinfo('example.com', 443)\nexcept socket.gaierror: pass\n"
    )
    # The resolver would wait 20 seconds for an answer that never comes.
    quick = ("env", "RES_OPTIONS=timeout:1 attempts:1")
    done = _isolated(tmp_path / "packets.json", *quick, sys.executable, "-c", ask)
    assert done.returncode == 0, done.stderr
    sent = json.loads((tmp_path / "packets.json").read_text())
    assert sent == ["udp 192.0.2.53:53 asks for example.com"]
    assert Path("/etc/resolv.conf").read_bytes() == before


def test_a_training_step_and_a_debug_rollout_send_nothing_beyond_this_machine(
    tmp_path: Path,
) -> None:
    done = _isolated(
        tmp_path / "packets.json", sys.executable, "-m", "tests.e2e.one_step", str(tmp_path / "d")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sent = json.loads((tmp_path / "packets.json").read_text())
    assert [destination for destination in sent if destination not in ALLOWED] == []
