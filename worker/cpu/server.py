"""An OpenAI-compatible chat-completions server over the policy that is being trained.

It answers as vLLM does with ``return_token_ids``: ``prompt_token_ids`` on the response and
``token_ids`` on each choice, which is what agentlightning builds its training samples from.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from worker.cpu.chat import PromptBuilder, parse_reply
from worker.cpu.generate import Generation, Generator, Request


class ChatRequest(BaseModel):
    """The part of a chat-completions request that is honoured; the rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    temperature: float | None = Field(1.0, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    n: int | None = 1
    stream: bool | None = False
    logprobs: bool | None = False


class PolicyServer:
    """Serves one generator on a loopback port, in a thread."""

    def __init__(
        self,
        generator: Generator,
        prompts: PromptBuilder,
        *,
        model_name: str,
        max_prompt_tokens: int,
        max_response_tokens: int,
        on_reply: Callable[[list[int], Generation], None] | None = None,
    ) -> None:
        self._generator = generator
        self._prompts = prompts
        self._model_name = model_name
        self._max_prompt = max_prompt_tokens
        self._max_response = max_response_tokens
        self._on_reply = on_reply
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="policy-server", daemon=True)

    def start(self) -> None:
        """Returns once requests are accepted (the socket is bound since construction)."""
        self._socket.listen(256)
        self._thread.start()

    def close(self) -> None:
        """Stops accepting and ends the thread."""
        self._server.should_exit = True
        self._thread.join(timeout=10)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _app(self) -> FastAPI:
        app = FastAPI(openapi_url=None)
        app.get("/health")(self._health)
        app.get("/v1/models")(self._models)
        app.post("/v1/chat/completions")(self._complete)
        return app

    async def _health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._model_name, "object": "model"}]}

    async def _complete(self, request: ChatRequest) -> JSONResponse:
        if request.stream or (request.n or 1) != 1:
            return _refuse("only n=1 without streaming is served", "invalid_request_error")
        text = self._prompts.text(request.messages, request.tools)
        # Each rollout has a seed of its own, so the seed names the conversation.
        ids = self._prompts.ids(text, request.seed)
        if len(ids) > self._max_prompt:
            # Sampled ids can be more than the tokenizer makes of the same text, which is what a
            # client can count.
            ids = self._prompts.encode(text)
        if len(ids) > self._max_prompt:
            return _refuse(
                f"This model's maximum context length is {self._max_prompt} prompt tokens; "
                f"your messages have {len(ids)}.",
                "context_length_exceeded",
            )
        wanted = request.max_completion_tokens or request.max_tokens or self._max_response
        temperature = 1.0 if request.temperature is None else request.temperature
        generation = await asyncio.wrap_future(
            self._generator.submit(
                Request(ids, min(wanted, self._max_response), temperature, request.seed)
            )
        )
        self._prompts.remember(text, ids, generation.ids, request.seed)
        if self._on_reply is not None:
            self._on_reply(ids, generation)
        return JSONResponse(self._answer(ids, generation, with_log_probs=bool(request.logprobs)))

    def _answer(
        self, prompt: list[int], generation: Generation, *, with_log_probs: bool
    ) -> dict[str, Any]:
        spoken = generation.ids[:-1] if generation.finish_reason == "stop" else generation.ids
        message = parse_reply(self._prompts.decode(spoken))
        reason = "tool_calls" if message["tool_calls"] else generation.finish_reason
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": reason,
            "token_ids": generation.ids,
        }
        if with_log_probs:
            choice["logprobs"] = {
                "content": [
                    {
                        "token": self._prompts.decode([i]),
                        "logprob": p,
                        "bytes": None,
                        "top_logprobs": [],
                    }
                    for i, p in zip(generation.ids, generation.log_probs, strict=True)
                ]
            }
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model_name,
            "choices": [choice],
            "prompt_token_ids": prompt,
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(generation.ids),
                "total_tokens": len(prompt) + len(generation.ids),
            },
        }


def _refuse(message: str, code: str) -> JSONResponse:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return JSONResponse(body, status_code=400)
