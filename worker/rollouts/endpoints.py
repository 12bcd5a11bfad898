"""Chat models behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import os
import time
from email.utils import mktime_tz, parsedate_tz

from agent_framework.openai import OpenAIChatCompletionClient
from openai import AsyncOpenAI

from worker.rollouts.agents import CHAT_OPTIONS, ChatClient

DEFAULT_BASE_URL = "https://api.openai.com/v1"


class MissingKey(LookupError):
    """The environment variable that a config names for a key is not set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"environment variable {name} is not set")
        self.name = name


def chat_model(
    *,
    model: str,
    base_url: str | None,
    api_key_env: str,
    temperature: float,
    max_retries: int = 2,
) -> OpenAIChatCompletionClient:
    """A client of one chat model, whose temperature is sent with every request.

    Args:
        base_url: None takes ``OPENAI_BASE_URL``, else OpenAI's own.
        api_key_env: name of the variable that holds the key.
        max_retries: of one request, on 408, 409, 429 (after its Retry-After), 5xx and lost
            connections.

    Raises:
        MissingKey: the variable is not set, or empty.
    """
    key = os.environ.get(api_key_env)
    if not key:
        raise MissingKey(api_key_env)
    endpoint = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
    connection = AsyncOpenAI(api_key=key, base_url=endpoint, max_retries=max_retries)
    client = OpenAIChatCompletionClient(model=model, async_client=connection)
    client.additional_properties[CHAT_OPTIONS] = {"temperature": temperature}
    return client


def retry_after_seconds(error: BaseException) -> float | None:
    """What the ``Retry-After`` of a failed request asks for, as seconds or as a date; else None.

    The framework raises errors of its own; the endpoint's answer is on one that lies under them.
    """
    link: BaseException | None = error
    while link is not None:
        value = getattr(getattr(link, "response", None), "headers", {}).get("retry-after")
        if value is not None:
            return _seconds_from_now(value)
        link = link.__cause__
    return None


def _seconds_from_now(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        date = parsedate_tz(value)
        if date is None:
            return None
        seconds = mktime_tz(date) - time.time()
    return seconds if 0 < seconds < float("inf") else None


async def close(client: ChatClient) -> None:
    """Closes the connections of a client that ``chat_model`` made; others have none."""
    connection = getattr(client, "client", None)
    if isinstance(connection, AsyncOpenAI):
        await connection.close()
