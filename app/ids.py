"""Prefixed ids that sort by the time they were made.

The form is that of a ULID (https://github.com/ulid/spec): 48 bits of milliseconds and 80 bits of
chance, in Crockford's base 32, here in lower case.
"""

from __future__ import annotations

import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LENGTH = 26
RANDOM_BITS = 80

_lock = threading.Lock()
_last = 0


def new_id(prefix: str) -> str:
    """Makes ``<prefix>_<26 characters>``; within one process each id is greater than the last."""
    global _last
    with _lock:
        fresh = (time.time_ns() // 1_000_000 << RANDOM_BITS) | secrets.randbits(RANDOM_BITS)
        # A clock that stands still or jumps back must not break the order.
        _last = fresh if fresh > _last else _last + 1
        value = _last
    return f"{prefix}_{_encode(value)}"


def _encode(value: int) -> str:
    digits = []
    for _ in range(LENGTH):
        value, digit = divmod(value, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
