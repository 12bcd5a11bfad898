"""The command line: ``tautrain serve``, ``worker``, ``demo`` and ``--version``.

Each command imports what it needs when it runs, so that ``--help`` stays instant.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from app.settings import Settings

SERVER_STOP_SECONDS = 5
"""How long a stopping server waits for open requests; a worker's long poll lasts longer."""

TRAINING_MODULES = ("torch", "ray", "verl", "agentlightning")
"""What a worker needs and the base install lacks."""

cli = typer.Typer(
    name="tautrain",
    help="Trains τ²-bench agents with agentlightning and VERL, behind an HTTP API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def version() -> str:
    """The installed version, or a word for a source tree that was never installed."""
    try:
        return importlib.metadata.version("tautrain")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tautrain {version()}")
        raise typer.Exit


@cli.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options that stand before a command."""


def _fail(message: str) -> NoReturn:
    typer.echo(f"tautrain: {message}", err=True)
    raise typer.Exit(1)


@cli.command()
def serve() -> None:
    """Start the API. Settings are environment variables: TAUTRAIN_HOST, TAUTRAIN_PORT, …"""
    settings = _settings()
    # The port is taken before the application is loaded: who finds it in use learns so at once.
    listener = _listen(settings.host, settings.port)

    import uvicorn

    from app.database import DatabaseTooNew, DatabaseUnusable
    from app.main import create_app

    try:
        application = create_app(settings)
    except DatabaseTooNew as error:
        _fail(str(error))
    except DatabaseUnusable as error:
        variable = "TAUTRAIN_DATA_DIR" if settings.database_url is None else "TAUTRAIN_DATABASE_URL"
        _fail(f"{variable}: {error}")
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    typer.echo(
        f"tautrain {version()}: API on http://{shown}:{settings.port} "
        f"(documentation at /docs), data in {settings.data_dir}"
    )
    server = uvicorn.Server(
        uvicorn.Config(
            application,
            log_level="info",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SERVER_STOP_SECONDS,
        )
    )
    with listener:
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            # uvicorn has stopped in good order, and then raises again what stopped it.
            raise typer.Exit(128 + signal.SIGINT) from None
    if not server.started:
        raise typer.Exit(1)


def _settings() -> Settings:
    """The settings, or the end naming each variable that cannot be used, without its value."""
    from pydantic import ValidationError

    from app.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        problems = [
            f"TAUTRAIN_{'_'.join(str(part) for part in problem['loc']).upper()}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_url=False)
        ]
    _fail("; ".join(problems))


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, or the end with one line that says what to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        _fail(f"TAUTRAIN_HOST={host} is not an address of this machine: {error.strerror}")
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            _fail(
                f"port {port} on {host} is in use: stop what listens there, "
                "or set TAUTRAIN_PORT to a free port"
            )
        _fail(f"cannot listen on {host}:{port} (TAUTRAIN_HOST, TAUTRAIN_PORT): {error.strerror}")
    return listener


@cli.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def worker(context: typer.Context) -> None:
    """Start a worker, which claims runs and trains. Options are those of `python -m worker`."""
    missing = [name for name in TRAINING_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        _fail(
            f"a worker needs {', '.join(missing)}, which this install lacks: install the extra "
            "for your machine, pip install 'tautrain[cpu]' or 'tautrain[gpu]' "
            "(in a source tree: make setup)"
        )
    settings = _settings()
    # What the API would take them for, so that the two cannot disagree.
    environment = {
        **os.environ,
        "TAUTRAIN_URL": settings.worker_url(),
        "TAUTRAIN_DATA_DIR": str(settings.data_dir.resolve()),
    }
    # The app never imports the worker: this process becomes one.
    os.execve(sys.executable, [sys.executable, "-m", "worker", *context.args], environment)


@cli.command()
def demo() -> None:
    """Train the default run here, from start to end, and show it. Ctrl-C stops all of it."""
    from app.demo import run_demo

    raise typer.Exit(run_demo(_settings()))


def main() -> None:
    """The console script."""
    cli()


if __name__ == "__main__":
    main()
