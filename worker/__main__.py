"""``python -m worker``: one worker of the service at ``TAUTRAIN_URL``."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from worker.client import ApiClient
from worker.loop import Worker, WorkerSettings, stop_on_signals
from worker.probe import NoEngine, probe
from worker.supervisor import AttemptSettings

DEFAULT_PORT = "8321"


def main(arguments: list[str] | None = None) -> int:
    """Runs a worker until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tautrain worker", description="Claims queued runs and trains them, one at a time."
    )
    parser.add_argument("--once", action="store_true", help="exit after one attempt")
    parser.add_argument("--name", default=socket.gethostname(), help="what people see")
    options = parser.parse_args(arguments)
    _log_to_stderr()
    url = api_url(os.environ)
    refusal = url_problem(url, os.environ)
    if refusal is not None:
        print(f"tautrain worker: {refusal}", file=sys.stderr)
        return 2
    data_dir = Path(os.environ.get("TAUTRAIN_DATA_DIR") or "./data")
    try:
        registration = probe(options.name)
    except NoEngine as error:
        print(f"tautrain worker: {error}", file=sys.stderr)
        return 2
    attempts = AttemptSettings(api_url=url, data_dir=data_dir, engines=registration.engines)
    with ApiClient(url) as client:
        worker = Worker(WorkerSettings(registration, attempts, once=options.once), client)
        stop_on_signals(worker)
        worker.run()
    logging.getLogger("worker").info("stopped")
    return 0


def api_url(environment: Mapping[str, str]) -> str:
    """Where the API is: TAUTRAIN_URL, else this machine at TAUTRAIN_PORT."""
    port = environment.get("TAUTRAIN_PORT") or DEFAULT_PORT
    return environment.get("TAUTRAIN_URL") or f"http://127.0.0.1:{port}"


def url_problem(url: str, environment: Mapping[str, str]) -> str | None:
    """Why nothing can be called at ``url``, naming the variable but not its value."""
    variable = "TAUTRAIN_URL" if environment.get("TAUTRAIN_URL") else "TAUTRAIN_PORT"
    refusal = f"{variable} gives no URL of an API: it needs the form http://host:port"
    try:
        parsed = urlsplit(url)
        port = parsed.port  # parsed only here
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        # Not their text, which may hold what was set, and so a password.
        return refusal
    fits = parsed.scheme in ("http", "https") and parsed.hostname and port != 0
    return None if fits else refusal


def _log_to_stderr() -> None:
    formatter = logging.Formatter(
        "%(asctime)sZ %(levelname)-7s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
