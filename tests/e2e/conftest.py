"""One service for all end-to-end tests: what its first run warms up, the later ones find."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.service import Service, service


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("service")) as client:
        yield client
