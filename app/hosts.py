"""Which names this service answers to.

A page on the internet may let its own name point at 127.0.0.1 and so have a browser call this API
as if it were the page's own server (DNS rebinding). The ``Host`` header then has the page's name,
which is not one of ours.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from app.problems import problem_response, shortened
from app.settings import Settings

ANY = "*"
"""In TAUTRAIN_ALLOWED_HOSTS: every name."""

UNSPECIFIED = ("0.0.0.0", "::")


class HostGuard:
    """Answers 421 to a request for a host that is not this service."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._any = ANY in settings.allowed_host_names()
        self._any_address = settings.host in UNSPECIFIED
        self._names = {_bare(name) for name in settings.allowed_host_names()}
        self._names.add(_bare(settings.host))
        # Where the operator told workers to find it.
        self._names.add(_bare(urlsplit(settings.worker_url()).netloc))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on if each of its Host headers is one of ours."""
        if scope["type"] == "http" and not self._any:
            for name, value in scope["headers"]:
                host = value.decode("latin-1")
                if name == b"host" and not self._ours(_bare(host)):
                    detail = (
                        f"this service is not {shortened(host)!r}; "
                        "TAUTRAIN_ALLOWED_HOSTS lists the names that it answers to"
                    )
                    await problem_response(421, detail)(scope, receive, send)
                    return
        await self.app(scope, receive, send)

    def _ours(self, host: str) -> bool:
        if host in self._names or host == "localhost":
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        # An address cannot be rebound; bound to all of them, each is one of ours.
        return address.is_loopback or self._any_address


def _bare(host: str) -> str:
    """A host without port, brackets and the dot of a whole name, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.rstrip(".")
