"""The processes that hold conversations, watched."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

from agentlightning.execution.client_server import ClientServerExecutionStrategy
from agentlightning.execution.events import ExecutionEvent
from agentlightning.store.base import LightningStore

WATCH_SECONDS = 1.0

OnDeath = Callable[[str], None]
"""Called, from a thread, with what is to be said of a runner that ended before training did."""


class WatchedRunners(ClientServerExecutionStrategy):
    """agentlightning's strategy of one algorithm process and forked runners, on loopback.

    The released one does not look at its runners while the algorithm runs: rollouts of a runner
    that was killed would be waited for without end. Ends when the strategy replaces dead runners.
    """

    def __init__(self, n_runners: int, port: int, on_death: OnDeath) -> None:
        super().__init__(n_runners=n_runners, server_host="127.0.0.1", server_port=port)
        self._on_death = on_death

    def _spawn_runners(
        self,
        runner: Any,
        store: LightningStore,
        stop_evt: ExecutionEvent,
        *,
        ctx: BaseContext,
    ) -> list[multiprocessing.Process]:
        processes: list[multiprocessing.Process] = super()._spawn_runners(
            runner, store, stop_evt, ctx=ctx
        )
        threading.Thread(
            target=self._watch, args=(processes, stop_evt), name="runner-watch", daemon=True
        ).start()
        return processes

    def _watch(self, processes: list[multiprocessing.Process], over: ExecutionEvent) -> None:
        """Ends with training, or with the first runner that ends before."""
        while True:
            for process in processes:
                process.join(WATCH_SECONDS / len(processes))
                if over.is_set():
                    return
                if process.exitcode is not None:
                    self._on_death(f"{process.name} ended early, with exit code {process.exitcode}")
                    return
