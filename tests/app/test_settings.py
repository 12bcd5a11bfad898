"""Settings and ids."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from app import ids
from app.settings import Settings


def test_settings_have_the_documented_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    assert settings.data_dir == Path("data")
    assert (settings.host, settings.port) == ("127.0.0.1", 8321)
    assert settings.worker_url() == "http://127.0.0.1:8321"
    assert settings.sqlalchemy_url() == f"sqlite:///{Path('data').resolve()}/tautrain.db"


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAUTRAIN_DATA_DIR", "/x")
    monkeypatch.setenv("TAUTRAIN_PORT", "9000")
    monkeypatch.setenv("TAUTRAIN_URL", "http://api:1/")
    monkeypatch.setenv("TAUTRAIN_MAX_BODY_BYTES", "2048")
    settings = Settings()
    assert (settings.port, settings.max_body_bytes) == (9000, 2048)
    assert settings.sqlalchemy_url() == "sqlite:////x/tautrain.db"
    assert settings.worker_url() == "http://api:1"
    monkeypatch.setenv("TAUTRAIN_PORT", "70000")
    with pytest.raises(ValidationError, match="port"):
        Settings()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8321"),
        ("::", "http://[::1]:8321"),
        ("fd00::1", "http://[fd00::1]:8321"),
        ("api", "http://api:8321"),
    ],
)
def test_a_worker_finds_the_api_wherever_it_binds(host: str, url: str) -> None:
    assert Settings(host=host, port=8321, url=None).worker_url() == url


def test_ids_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [ids.new_id("run") for _ in range(1000)]
    assert made == sorted(set(made))
    assert all(len(one) == 30 and one.startswith("run_") for one in made)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert ids.new_id("run") > made[-1], "a clock that jumps back must not break the order"
