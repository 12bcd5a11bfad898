"""The claim that the reference earns all there is, on every base task of the large domains."""

from __future__ import annotations

import pytest

from app.contract import Domain
from worker.rollouts.baselines import baselines
from worker.rollouts.tasks import task_ids

KNOWN_DO_NOTHING = {Domain.AIRLINE: 0.38, Domain.RETAIL: 0.061, Domain.TELECOM: 0.0}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("domain", KNOWN_DO_NOTHING)
def test_the_reference_earns_one_on_every_task_and_doing_nothing_what_was_measured(
    domain: Domain,
) -> None:
    known = baselines(domain, task_ids(domain))
    assert [one.task_id for one in known if one.reference != 1.0] == []
    do_nothing = sum(one.do_nothing or 0.0 for one in known) / len(known)
    assert do_nothing == pytest.approx(KNOWN_DO_NOTHING[domain], abs=0.001)
