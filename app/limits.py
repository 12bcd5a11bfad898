"""The limit on request bodies, as plain ASGI so that chunked bodies are counted too."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.problems import problem_response

DRAIN_BYTES = 256 * 1024 * 1024
"""How much of a refused body is read and thrown away, so that the sender hears the answer."""

DRAIN_SECONDS = 10.0


class BodyTooLargeError(Exception):
    """More bytes than allowed came."""


class BodyLimit:
    """Answers 413 to a body of more than ``max_bytes``, declared or sent."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, counting its body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _declared_length(scope) > self.max_bytes:
            await self._refuse(scope, receive, send, 0, ended=False)
            return
        seen = 0
        ended = started = False

        async def counted() -> Message:
            nonlocal seen, ended
            message = await receive()
            seen += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if seen > self.max_bytes:
                raise BodyTooLargeError
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            # FastAPI turns an error while reading into a 400; that answer is not the right one.
            if seen > self.max_bytes and not started:
                return
            started = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        except BodyTooLargeError:
            if started:
                raise
        if seen > self.max_bytes and not started:
            await self._refuse(scope, receive, send, seen, ended)

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, seen: int, ended: bool
    ) -> None:
        # Closing a connection with unread bytes resets it, and the answer is lost on the way.
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while not ended and seen <= DRAIN_BYTES:
                    message = await receive()
                    seen += len(message.get("body", b""))
                    ended = not message.get("more_body", False)
        except TimeoutError:
            pass  # a slow sender is answered all the same
        detail = f"the body is larger than {self.max_bytes} bytes"
        await problem_response(413, detail)(scope, receive, send)


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
