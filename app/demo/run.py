"""The demo: starts the API and a worker, queues the default run, follows it, ends them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import httpx
from rich.console import Console

from app.contract import RunStatus
from app.demo.processes import Child, Processes
from app.demo.screen import Screen
from app.demo.story import Story
from app.demo.summary import Places, judge, summarise
from app.demo.view import RunView, read_run
from app.settings import Settings

HOST = "127.0.0.1"
"""The demo serves this machine alone, whatever TAUTRAIN_HOST says."""

READY_SECONDS = 60
"""How long the API may take to start."""

POLL_SECONDS = 0.5

SILENT_SECONDS = 60
"""How long a running API may leave questions unanswered before the demo gives up."""

MAX_POINTS = 200


class DemoFailed(Exception):
    """Something the demo needs went wrong; the message and log lines are for the reader."""

    def __init__(self, message: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log_tail = list(log_tail)


class Interrupted(Exception):
    """The reader asked to stop."""


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP as events: the first asks to stop, the second to hurry."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.hurry = threading.Event()
        self.signum: int | None = None

    def install(self) -> None:
        """Takes the signals over."""
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP, and a shell's background job SIGINT: so does the demo then.
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._receive)

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        if self.asked.is_set():
            self.hurry.set()
        self.signum = self.signum or signum
        self.asked.set()

    def pause(self, seconds: float) -> None:
        """Waits; raises ``Interrupted`` as soon as a signal comes."""
        if self.asked.wait(seconds):
            raise Interrupted


def free_port(wanted: int) -> int:
    """The wanted port where it is free on loopback, else one that is."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DemoFailed("no port is free on 127.0.0.1")


def serve_command(settings: Settings, port: int) -> str:
    """What to type to serve this data at this port again."""
    script = "tautrain"
    if shutil.which(script) is None:
        script = os.path.relpath(Path(sys.executable).with_name(script))
    moved = "" if port == settings.port else f"TAUTRAIN_PORT={port} "
    return f"{moved}{script} serve"


class Demo:
    """One showing."""

    def __init__(
        self, settings: Settings, screen: Screen, signals: StopSignals, worker: Sequence[str]
    ) -> None:
        self._settings = settings
        self._screen = screen
        self._signals = signals
        self._worker_command = worker
        self._data_dir = settings.data_dir.resolve()
        self._processes = Processes()
        self._run_id: str | None = None
        self._queued_at = 0.0
        self.port = free_port(settings.port)
        self.url = f"http://{HOST}:{self.port}"
        # A proxy of the environment is not for loopback.
        self._client = httpx.Client(base_url=self.url, trust_env=False, timeout=5)

    def run(self) -> bool:
        """Shows it all. True if the policy learned; raises ``DemoFailed`` or ``Interrupted``."""
        if self.port != self._settings.port:
            self._screen.say(
                [f"port {self._settings.port} is taken: this demo uses port {self.port}"]
            )
        api = self._start("api", [sys.executable, "-m", "app.cli", "serve"])
        self._await_api(api)
        worker = self._start("worker", self._worker_command)
        self._queue()
        story = Story()
        run = self._follow(story, [api, worker])
        self._screen.freeze()
        places = Places(
            serve_command(self._settings, self.port),
            self.url,
            str(self._data_dir),
            (str(worker.log), str(api.log)),
        )
        self._screen.say(summarise(run, story.seconds, places))
        return judge(run).learned

    def stop(self) -> None:
        """Cancels a run that was left unfinished, ends every process, and says what is left."""
        self._cancel()
        self._client.close()
        left = self._processes.stop(hurry=self._signals.hurry)
        self._screen.say(
            [f"still running: {', '.join(str(process.pid) for process in left)}"]
            if left
            else ["everything that the demo started has ended"]
        )

    def _start(self, name: str, command: Sequence[str]) -> Child:
        log = self._data_dir / "demo" / f"{name}.log"
        self._screen.say([f"starting the {name} (output in {log})"])
        return self._processes.start(name, command, self._environment(), log)

    def _environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "TAUTRAIN_DATA_DIR": str(self._data_dir),
            "TAUTRAIN_HOST": HOST,
            "TAUTRAIN_PORT": str(self.port),
            "TAUTRAIN_URL": self.url,
            "PYTHONUNBUFFERED": "1",
        }

    def _await_api(self, api: Child) -> None:
        started = time.monotonic()
        while (waited := time.monotonic() - started) < READY_SECONDS:
            self._must_live(api)
            try:
                if self._client.get("/readyz").is_success:
                    self._screen.say([f"the API is ready: {self.url} (documentation at /docs)"])
                    return
            except httpx.TransportError:
                # Not listening yet.
                self._screen.wait("the API starts", waited)
            self._signals.pause(0.1)
        raise DemoFailed(f"the API was not ready within {READY_SECONDS} s", api.log_tail())

    def _must_live(self, child: Child) -> None:
        if child.exit_code is not None:
            raise DemoFailed(
                f"the {child.name} ended with code {child.exit_code}", child.log_tail()
            )

    def _queue(self) -> None:
        older = self._client.get("/runs", params={"status": "queued"})
        answer = self._client.post("/runs", json={})
        document = answer.json()
        if answer.status_code != httpx.codes.CREATED:
            raise DemoFailed(f"POST /runs: {document.get('title')}: {document.get('detail')}")
        self._run_id = str(document["id"])
        self._queued_at = time.monotonic()
        self._screen.say([f"POST /runs {{}} queued {self._run_id} ({document.get('preset')})"])
        if older.is_success and (waiting := older.json()["items"]):
            names = ", ".join(str(run["id"]) for run in waiting)
            self._screen.say([f"queued before it, and so trained first: {names}"])

    def _follow(self, story: Story, children: Sequence[Child]) -> RunView:
        answered_at = time.monotonic()
        while True:
            try:
                run = self._read()
            except httpx.TransportError as error:
                if time.monotonic() - answered_at > SILENT_SECONDS:
                    raise DemoFailed(f"the API does not answer: {error}") from error
            else:
                answered_at = time.monotonic()
                elapsed = answered_at - self._queued_at
                self._screen.say(story.lines(run, elapsed))
                self._screen.show(run, elapsed)
                if run.ended:
                    self._run_id = None
                    return run
            for child in children:
                self._must_live(child)
            self._processes.observe()
            self._signals.pause(POLL_SECONDS)

    def _read(self) -> RunView:
        answer = self._client.get(f"/runs/{self._run_id}", params={"max_points": MAX_POINTS})
        if answer.is_error:
            raise DemoFailed(f"GET /runs/{self._run_id} answered {answer.status_code}")
        return read_run(answer.json())

    def _cancel(self) -> None:
        """So that the next worker does not take up a run that nobody waits for."""
        if self._run_id is None:
            return
        try:
            answer = self._client.post(f"/runs/{self._run_id}/cancel", timeout=2)
        except httpx.TransportError as error:
            self._screen.say([f"could not cancel {self._run_id}: {error}"])
            return
        word = RunStatus.CANCELLED if answer.is_success else f"not cancelled ({answer.status_code})"
        self._screen.say([f"{self._run_id}: {word}"])


def run_demo(
    settings: Settings,
    worker_command: Sequence[str] | None = None,
    console: Console | None = None,
) -> int:
    """Runs the demo and returns its exit code.

    0 if the run succeeded and validates better after than before; 1 if not, or if anything
    failed; 128 and the signal's number if it was stopped. ``worker_command`` stands in for
    ``tautrain worker``.
    """
    signals = StopSignals()
    signals.install()
    console = console or Console(highlight=False)
    command = worker_command or [sys.executable, "-m", "app.cli", "worker"]
    with Screen(console) as screen:
        screen.say(["tautrain demo: the default run, from start to end. Ctrl-C stops all of it."])
        try:
            demo = Demo(settings, screen, signals, command)
        except DemoFailed as error:
            screen.say([f"the demo failed: {error}"])
            return 1
        try:
            return 0 if demo.run() else 1
        except (DemoFailed, httpx.HTTPError) as error:
            screen.freeze()
            screen.say(["", f"the demo failed: {error}"])
            screen.say(f"  | {line}" for line in getattr(error, "log_tail", ()))
            return 1
        except Interrupted:
            screen.freeze()
            screen.say(["", "stopping what the demo started; Ctrl-C again ends it at once"])
            return 128 + (signals.signum or signal.SIGINT)
        finally:
            demo.stop()
