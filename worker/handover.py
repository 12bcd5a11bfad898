"""The two files that a worker and its child hand each other, in the attempt's directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from app.contract import Claim, RunError
from worker.outbox import ReporterConfig

RESULT_NAME = "result.json"

STOP_REASON_NAME = "stop_reason"
"""File by which the trainer tells the attempt's main process why training ended early."""

SPENT_NAME = "budget_spent"
"""File by which the worker tells the child that a budget is spent; it names the field."""


class AttemptInput(BaseModel):
    """What the child is told: the claim, and where things are. ``claim.json``, mode 0600."""

    model_config = ConfigDict(extra="forbid")

    claim: Claim
    api_url: str
    data_dir: Path
    attempt_dir: Path
    spool_dir: Path

    @classmethod
    def of(cls, claim: Claim, *, api_url: str, data_dir: Path) -> AttemptInput:
        """The input of a claim, with the attempt's own directory below ``data_dir``.

        A ``~`` in ``model.path`` is expanded here: the libraries that load a model do not.
        """
        model = claim.config.model
        model = model.model_copy(update={"path": os.path.expanduser(model.path)})
        config = claim.config.model_copy(update={"model": model})
        claim = claim.model_copy(update={"config": config})
        data_dir = data_dir.expanduser().resolve()
        attempt_dir = data_dir / "attempts" / claim.run_id / str(claim.attempt)
        return cls(
            claim=claim,
            api_url=api_url,
            data_dir=data_dir,
            attempt_dir=attempt_dir,
            spool_dir=attempt_dir / "spool",
        )

    @classmethod
    def read(cls, path: Path) -> AttemptInput:
        """Reads ``claim.json``. Raises ``OSError`` and ``pydantic.ValidationError``."""
        return cls.model_validate_json(path.read_bytes())

    @property
    def path(self) -> Path:
        """Where ``write`` puts it."""
        return self.attempt_dir / "claim.json"

    def write(self) -> Path:
        """Makes the directory and writes the file, readable by this user alone (lease token)."""
        self.attempt_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.spool_dir.mkdir(exist_ok=True, mode=0o700)
        (self.attempt_dir / RESULT_NAME).unlink(missing_ok=True)
        write_private(self.path, self.model_dump_json(indent=1).encode())
        return self.path

    def tell_spent(self, field: str) -> None:
        """Tells the child that the budget of a field is spent. Raises ``OSError``."""
        write_private(self.attempt_dir / SPENT_NAME, field.encode())

    def reporter_config(self) -> ReporterConfig:
        """What a ``Reporter`` of this attempt needs."""
        return ReporterConfig(
            api_url=self.api_url,
            run_id=self.claim.run_id,
            attempt=self.claim.attempt,
            lease_token=self.claim.lease_token,
            spool_dir=str(self.spool_dir),
        )


class AttemptResult(BaseModel):
    """How the child says that it ended. Without one, its exit code and signal decide."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["succeeded", "failed"]
    error: RunError | None = None
    stop_reason: str | None = None

    def write(self, attempt_dir: Path) -> None:
        """Writes ``result.json`` in one piece, so that it is whole or not there."""
        write_private(attempt_dir / RESULT_NAME, self.model_dump_json(indent=1).encode())

    @classmethod
    def read(cls, attempt_dir: Path) -> AttemptResult | None:
        """The result the child left, or None; a file that is no result counts as none."""
        try:
            return cls.model_validate_json((attempt_dir / RESULT_NAME).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file in one piece; mode 0600. Raises ``OSError``."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(temporary, path)
