"""Wakes the workers that wait for a run, so that they need not ask again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Wakeup:
    """Events of one event loop that any thread may set all at once."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: set[asyncio.Event] = set()
        self._stopped = False

    @contextmanager
    def waiter(self) -> Iterator[asyncio.Event]:
        """An event that the next :meth:`notify` sets. Take it before you look at the queue."""
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._waiters.add(event)
        try:
            yield event
        finally:
            self._waiters.discard(event)

    def notify(self) -> None:
        """Wakes every waiter; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def stop(self) -> None:
        """Ends every wait, and those to come: the server stops."""
        self._stopped = True
        self.notify()

    def stopped(self) -> bool:
        """Whether the server stops, so that nobody should wait."""
        return self._stopped

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def _wake(self) -> None:
        for event in self._waiters:
            event.set()
