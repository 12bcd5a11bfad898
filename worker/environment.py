"""The environment of a child: nothing phones home unless the config asks for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from app.contract import RunConfig
from worker.guard import PARENT_VARIABLE
from worker.preflight import is_hub_id

_SILENT = {
    "AGENTOPS_AUTO_INIT": "false",
    "AGENTOPS_ENV_DATA_OPT_OUT": "true",
    "AGENTOPS_LOGGING_TO_FILE": "FALSE",
    "AGENTOPS_LOG_SESSION_REPLAY_URL": "false",
    "AGENTOPS_PREFETCH_JWT_TOKEN": "false",
    # agentlightning starts AgentOps with a made-up key; what it would send ends at a closed port.
    "AGENTOPS_API_ENDPOINT": "http://127.0.0.1:9",
    "AGENTOPS_APP_URL": "http://127.0.0.1:9",
    "AGENTOPS_EXPORTER_ENDPOINT": "http://127.0.0.1:9/v1/traces",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

_READABLE = {
    "HYDRA_FULL_ERROR": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def child_environment(
    base: Mapping[str, str], config: RunConfig, worker_pid: int
) -> dict[str, str]:
    """A copy of ``base`` with telemetry, hub and trackers off unless ``config`` asks for them,
    and without what would join it to other services of the machine."""
    environment = {**base, **_SILENT, **_READABLE}
    environment.pop("AGENTOPS_API_KEY", None)
    # A run has a Ray of its own; with this one it would join whatever runs at that address.
    environment.pop("RAY_ADDRESS", None)
    environment[PARENT_VARIABLE] = str(worker_pid)
    if not is_hub_id(config.model.path):
        environment["HF_HUB_OFFLINE"] = "1"
        environment["TRANSFORMERS_OFFLINE"] = "1"
    if "wandb" not in config.tracking.backends:
        environment["WANDB_MODE"] = "disabled"
    # Half of the cores each for the policy and for the conversations around it.
    threads = max(1, min(8, (os.cpu_count() or 1) // 2))
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in environment.get(name, "").split(",") if host]
        environment[name] = ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))
    return environment
