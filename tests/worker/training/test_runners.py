"""Claims about watched runners: one that dies ends training, one that is done does not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

from agentlightning.execution.events import MultiprocessingEvent

from worker.training.runners import WatchedRunners


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _watched(seconds: float) -> tuple[WatchedRunners, list[multiprocessing.Process], list[str]]:
    said: list[str] = []
    strategy = WatchedRunners(2, 1, said.append)
    processes = [
        multiprocessing.Process(target=_sleep, args=(seconds,), name=f"runner-{number}")
        for number in range(2)
    ]
    for process in processes:
        process.start()
    return strategy, processes, said


def test_a_runner_that_is_killed_is_noticed() -> None:
    strategy, processes, said = _watched(60)
    over = MultiprocessingEvent(ctx=multiprocessing.get_context())
    watch = threading.Thread(target=strategy._watch, args=(processes, over))
    watch.start()
    try:
        os.kill(processes[1].pid or 0, signal.SIGKILL)
        watch.join(timeout=20)
        assert not watch.is_alive()
        assert said == ["runner-1 ended early, with exit code -9"]
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_runners_that_end_with_training_are_not_missed() -> None:
    strategy, processes, said = _watched(0.2)
    over = MultiprocessingEvent(ctx=multiprocessing.get_context())
    over.set()
    strategy._watch(processes, over)
    for process in processes:
        process.join()
    assert said == []
