"""The LiteLLM proxy of a run: on loopback, with a key of its own."""

from __future__ import annotations

import os
import secrets
import socket

from agentlightning.llm_proxy import LLMProxy
from agentlightning.store.base import LightningStore
from agentlightning.utils.server_launcher import PythonServerLauncherArgs

KEY_VARIABLE = "LITELLM_MASTER_KEY"
START_TIMEOUT_SECONDS = 120


def make_proxy_key() -> str:
    """Sets a random key for this run's proxy in the environment, and returns it.

    A current LiteLLM refuses to start without one. Forked runners and Ray actors inherit it.
    """
    key = f"sk-{secrets.token_hex(24)}"
    os.environ[KEY_VARIABLE] = key
    return key


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def loopback_proxy(store: LightningStore) -> LLMProxy:
    """A proxy in a process of its own, bound to 127.0.0.1.

    agentlightning 0.3.0 would bind to 0.0.0.0 and ask ``/health``, which needs the key and calls
    the model. Ends when LLMProxy takes both as arguments of its own.
    """
    return LLMProxy(
        store=store,
        model_list=[],
        # Samples are built from the runners' own spans; the proxy's would only be exported twice.
        callbacks=["return_token_ids"],
        launcher_args=PythonServerLauncherArgs(
            host="127.0.0.1",
            port=free_port(),
            launch_mode="mp",
            healthcheck_url="/health/liveliness",
            startup_timeout=START_TIMEOUT_SECONDS,
        ),
    )
