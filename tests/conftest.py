"""What holds for every test: settings of this machine do not leak in, and nothing leaves it."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Any

# Before anything reads them.
for name in [name for name in os.environ if name.startswith(("TAUTRAIN_", "OPENAI_"))]:
    del os.environ[name]
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


class LeavesThisMachine(BaseException):
    """A test tried to reach another machine. No ``except Exception`` may hide it."""


def _only_loopback(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in {"socket.connect", "socket.sendto", "socket.sendmsg"}:
        return
    address = arguments[1]
    if not isinstance(address, tuple):
        return  # A Unix socket, or a datagram on a connected one.
    host = str(address[0])
    try:
        local = ipaddress.ip_address(host.split("%", maxsplit=1)[0]).is_loopback
    except ValueError:
        local = host in {"localhost", ""}
    if not local:
        raise LeavesThisMachine(f"{event} to {host}")


sys.addaudithook(_only_loopback)
