"""The service's settings: one object, read from ``TAUTRAIN_*`` environment variables."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.contract import DEFAULT_KEY_VARIABLES

MEBIBYTE = 1024 * 1024


class Settings(BaseSettings):
    """Every setting of the API, with its default and unit."""

    model_config = SettingsConfigDict(env_prefix="TAUTRAIN_", env_ignore_empty=True)

    data_dir: Path = Field(Path("data"), description="Database, logs, checkpoints and caches.")
    host: str = Field("127.0.0.1", description="Address the API binds to.")
    port: int = Field(8321, ge=1, le=65535, description="Port the API binds to.")
    database_url: str | None = Field(
        None, description="SQLAlchemy URL; None means SQLite in data_dir/tautrain.db."
    )
    url: str | None = Field(
        None, description="Where workers find the API; None means http://host:port."
    )

    allowed_hosts: str = Field(
        "",
        description="Names, separated by commas, that the API answers to besides loopback, host "
        "and that of url; * means any.",
    )
    key_variables: str = Field(
        DEFAULT_KEY_VARIABLES,
        description="Variables, separated by commas, that a config may name as holding a key.",
    )

    max_body_bytes: int = Field(16 * MEBIBYTE, ge=1024, description="Larger bodies get a 413.")
    lease_check_seconds: float = Field(
        5, gt=0, description="How often lapsed leases are looked for."
    )
    debug_rollouts_at_once: int = Field(2, ge=1, description="More at a time get a 429.")
    debug_start_seconds: float = Field(
        60, gt=0, description="How long a debug child may take until it is ready."
    )
    debug_command: list[str] = Field(
        default_factory=lambda: [sys.executable, "-m", "worker.debug"],
        description="Command of a debug child.",
    )

    def sqlalchemy_url(self) -> str:
        """The database's URL, with the default filled in."""
        if self.database_url is not None:
            return self.database_url
        return f"sqlite:///{self.data_dir.resolve() / 'tautrain.db'}"

    def allowed_host_names(self) -> list[str]:
        """The entries of ``allowed_hosts``."""
        return [name.strip() for name in self.allowed_hosts.split(",") if name.strip()]

    def worker_url(self) -> str:
        """The address a worker reports to, with the default filled in."""
        return (self.url or f"http://{_reachable(self.host)}:{self.port}").rstrip("/")


def _reachable(host: str) -> str:
    """The host of a URL for who listens at ``host``: one that binds to all is called locally."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
