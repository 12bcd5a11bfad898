"""A Ray of this run's own, on loopback."""

from __future__ import annotations

import ray
from ray._private import ray_constants

LOOPBACK = "127.0.0.1"

LEAST_CPUS = 4
"""Ray's CPUs are places, not cores: the trainer and the actor take one each."""


def start_ray(cpus: int) -> None:
    """Starts Ray without dashboard, usage statistics or a look for the node's address.

    Stock Ray 2.60 connects to the node's own address, the cloud's metadata address and a public
    resolver to find its IP. ``ENABLE_RAY_CLUSTER = False`` makes it take 127.0.0.1; it ends when
    Ray has a public option for it.
    """
    ray_constants.ENABLE_RAY_CLUSTER = False
    ray.init(
        num_cpus=max(LEAST_CPUS, cpus),
        include_dashboard=False,
        _node_ip_address=LOOPBACK,
        log_to_driver=True,
        logging_level="warning",
        # Ray's default niceness of 15 would let the conversations starve the policy they wait for.
        _system_config={"worker_niceness": 0},
    )
