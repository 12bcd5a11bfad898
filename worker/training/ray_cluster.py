"""A Ray of this run's own, on loopback, that asks nobody where it is."""

from __future__ import annotations

from typing import Any

import ray
from ray._private import ray_constants, services

LOOPBACK = "127.0.0.1"

LEAST_CPUS = 4
"""Ray's CPUs are places, not cores: the trainer and the actor take one each."""


def start_ray(cpus: int | None) -> None:
    """Starts Ray without dashboard, usage statistics or a look for the node's address.

    Two habits of Ray 2.60 have no public switch, so its private names are used; each ends when
    Ray has an option for it:

    - It connects to the node's own address, and to a public resolver, to find its IP.
      ``ENABLE_RAY_CLUSTER = False`` makes it take 127.0.0.1.
    - Its dashboard process starts with ``include_dashboard=False`` too and asks the clouds'
      metadata addresses which cloud this is, usage statistics off or not. It is not started.

    Args:
        cpus: How many CPUs Ray may count on; None leaves it to Ray to count the machine's.
    """
    ray_constants.ENABLE_RAY_CLUSTER = False
    services.start_api_server = _no_dashboard
    ray.init(
        # Never a cluster that happens to run here: it may be somebody's.
        address="local",
        num_cpus=None if cpus is None else max(LEAST_CPUS, cpus),
        include_dashboard=False,
        _node_ip_address=LOOPBACK,
        log_to_driver=True,
        logging_level="warning",
        # Ray's default niceness of 15 would let the conversations starve the policy they wait for.
        _system_config={"worker_niceness": 0},
    )


def _no_dashboard(*_: Any, **__: Any) -> tuple[str, None]:
    """What Ray's own function returns when it started no process: no address, no process."""
    return "", None
