"""The two participants as agents of the agent framework that speak, and do nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_framework import (
    Agent,
    AgentExecutor,
    HistoryProvider,
    Message,
    SupportsChatGetResponse,
)

ASSISTANT_AGENT = "assistant_agent"
"""Id of the assistant's ``AgentExecutor``: agentlightning's ``agent_match`` is told it."""

USER_AGENT = "user_simulator"

CHAT_OPTIONS = "chat_options"
"""Key of a chat client's ``additional_properties``: options that belong to every request of it."""

ChatClient = SupportsChatGetResponse[Any]


class _NoHistory(HistoryProvider):
    """Keeps the agent from remembering: the orchestrator sends it all that it is to see."""

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        return []

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        return None


def speaker(
    name: str,
    client: ChatClient,
    prompt: str,
    tools: Sequence[dict[str, Any]],
    options: dict[str, Any],
) -> AgentExecutor:
    """An agent that only speaks: one model call for each request, its tool calls left alone."""
    invocation = getattr(client, "function_invocation_configuration", None)
    if invocation is not None:
        # agent-framework 1.23 has no way to say this for one agent or one request.
        client.function_invocation_configuration = {  # type: ignore[attr-defined]
            **invocation,
            "enabled": False,
        }
    own = getattr(client, "additional_properties", {}).get(CHAT_OPTIONS, {})
    agent = Agent(
        client=client,
        id=name,
        name=name,
        instructions=prompt,
        tools=[*tools],
        default_options={**own, **options},
        context_providers=[_NoHistory(source_id="none")],
    )
    return AgentExecutor(agent, id=name)


def keys_of(client: ChatClient) -> frozenset[str]:
    """The key that an OpenAI client sends, to be kept out of a cause."""
    key = getattr(getattr(client, "client", None), "api_key", None)
    return frozenset([key]) if isinstance(key, str) and key else frozenset()
