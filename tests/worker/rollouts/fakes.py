"""Fake chat clients, a fake model server on loopback, and short ways to write what they say."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

from agent_framework import Content, Message

from app.contract import Domain, RolloutDoc, RolloutMode
from worker.rollouts.conversation import RolloutSpec, run_rollout
from worker.rollouts.scripted import ScriptedClient

Reply = str | Content | list[Any] | Exception

_ids = count()


def call(name: str, arguments: str | dict[str, Any], call_id: str | None = None) -> Content:
    """A tool call as a chat client hands it over."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Content.from_function_call(
        call_id=call_id or f"id_{next(_ids)}", name=name, arguments=text
    )


CREATE = {"user_id": "user_1", "title": "Important Meeting"}


def create() -> Content:
    """The call that solves mock's create_task_1."""
    return call("create_task", CREATE)


class FakeClient(ScriptedClient):
    """Gives the replies it is told, the last one for ever, and keeps what it was shown."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__()
        self.replies = list(replies)
        self.shown: list[list[Message]] = []

    def answer(self, messages: Sequence[Message]) -> list[Content | str]:
        self.shown.append(list(messages))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, list) else [reply]


def user(*replies: Reply) -> FakeClient:
    """A fake user that ends the conversation after its replies."""
    return FakeClient(*replies, "###STOP###")


def spec(task_id: str = "create_task_1", domain: Domain = Domain.MOCK, **over: Any) -> RolloutSpec:
    """A spec with generous limits."""
    fields: dict[str, Any] = {
        "id": "ro_test",
        "mode": RolloutMode.DEBUG,
        "max_steps": 30,
        "max_errors": 10,
        "window_tokens": 100_000,
        "timeout_seconds": 30,
    }
    return RolloutSpec(domain=domain, task_id=task_id, **{**fields, **over})


def converse(assistant: Any, other: Any, of: RolloutSpec | None = None, **more: Any) -> RolloutDoc:
    """One rollout in an event loop of its own."""
    return asyncio.run(run_rollout(of or spec(), assistant, other, **more))


Answer = Callable[["_Handler", dict[str, Any]], None]


class FakeServer:
    """An OpenAI-compatible server whose answers are scripted, the last one for ever.

    It is a fake that injects faults: an answer may be an error, a broken body or none at all.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.fake = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(*answers: Answer) -> Iterator[FakeServer]:
    server = FakeServer(*answers)
    try:
        yield server
    finally:
        server.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        fake: FakeServer = self.server.fake  # type: ignore[attr-defined]
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.requests.append(request)
        fake.paths.append(self.path)
        answer = fake.answers.pop(0) if len(fake.answers) > 1 else fake.answers[0]
        answer(self, request)

    def send(
        self, status: int, body: bytes, length: int | None = None, retry_after: str | None = None
    ) -> None:
        self.send_response(status)
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


def completion(**message: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": None, **message},
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def says(text: str) -> Answer:
    return lambda handler, _: handler.send(200, json.dumps(completion(content=text)).encode())


def calls(name: str, arguments: str) -> Answer:
    function = {"name": name, "arguments": arguments}
    body = completion(tool_calls=[{"id": "t1", "type": "function", "function": function}])
    return lambda handler, _: handler.send(200, json.dumps(body).encode())


def fails(status: int, message: str = "broken", retry_after: str | None = None) -> Answer:
    body = json.dumps({"error": {"message": message, "type": "x", "code": status}}).encode()
    return lambda handler, _: handler.send(status, body, retry_after=retry_after)


def raw(body: bytes) -> Answer:
    return lambda handler, _: handler.send(200, body)


def hangs(handler: _Handler, _: dict[str, Any]) -> None:
    handler.server.fake.released.wait(60)  # type: ignore[attr-defined]
    handler.close_connection = True


def cuts(handler: _Handler, _: dict[str, Any]) -> None:
    """Promises more than it sends, and closes the connection."""
    handler.send(200, b'{"id": "c", "choi', length=500)
    handler.close_connection = True
