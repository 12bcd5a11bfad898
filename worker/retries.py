"""How long a rollout that was not judged waits before it is tried again."""

from __future__ import annotations

import hashlib

FIRST_WAIT_SECONDS = 1.0
"""After the first try; it doubles with each further one."""

LONGEST_WAIT_SECONDS = 60.0
"""Whatever a server asks for: the runner holds no other conversation meanwhile."""


def retry_wait(tries: int, name: str, retry_after: float | None = None) -> float:
    """Seconds to wait after a number of tries: exponential, with jitter, bounded.

    Args:
        tries: how often the rollout was tried, at least 1.
        name: of the try. The jitter (up to half as much again) is made from it, since a random
            generator would be the same in every forked runner, and all would come back at once.
        retry_after: seconds that the endpoint asked for; they are never cut by the jitter.
    """
    doubled = FIRST_WAIT_SECONDS * 2.0 ** min(tries - 1, 16)
    jitter = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return min(LONGEST_WAIT_SECONDS, max(doubled, retry_after or 0.0) * (1 + jitter / 2))
