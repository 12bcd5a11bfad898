"""Claims about the wait between two tries of a rollout."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from worker.retries import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, retry_wait


@given(st.integers(1, 10_000), st.text(), st.none() | st.floats(0, 1e9))
def test_a_wait_is_bounded_and_never_shorter_than_what_the_endpoint_asked_for(
    tries: int, name: str, retry_after: float | None
) -> None:
    wait = retry_wait(tries, name, retry_after)
    assert FIRST_WAIT_SECONDS <= wait <= LONGEST_WAIT_SECONDS
    assert wait >= min(retry_after or 0, LONGEST_WAIT_SECONDS)


def test_a_wait_doubles_with_each_try() -> None:
    waits = [mean(retry_wait(tries, str(n)) for n in range(500)) for tries in (1, 2, 3, 4)]
    for shorter, longer in pairwise(waits):
        assert 1.9 < longer / shorter < 2.1


def test_rollouts_that_failed_together_do_not_come_back_together() -> None:
    waits = {round(retry_wait(1, f"ro_{n}"), 2) for n in range(64)}
    assert len(waits) > 20
    assert retry_wait(1, "ro_1") == retry_wait(1, "ro_1")
