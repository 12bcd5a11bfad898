"""The world a conversation acts in, and what of it never changes: policy, tools, prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tau2.agent.llm_agent import AGENT_INSTRUCTION, SYSTEM_PROMPT
from tau2.data_model.tasks import Task
from tau2.environment.environment import Environment
from tau2.registry import registry
from tau2.user.user_simulator import SYSTEM_PROMPT as USER_PROMPT
from tau2.user.user_simulator import get_global_user_sim_guidelines

from app.contract import Domain


@dataclass(frozen=True)
class Surface:
    """What a domain shows of itself. Tools are OpenAI function declarations, as τ² writes them."""

    assistant_prompt: str
    assistant_tools: tuple[dict[str, Any], ...]
    user_tools: tuple[dict[str, Any], ...]


def new_environment(domain: Domain) -> Environment:
    """A fresh environment with the domain's own data."""
    return registry.get_env_constructor(domain.value)(solo_mode=False)


@lru_cache
def surface(domain: Domain) -> Surface:
    """The domain's surface, made once per process: τ² builds a pydantic model for every tool."""
    environment = new_environment(domain)
    user_tools = environment.get_user_tools() if environment.user_tools is not None else []
    return Surface(
        assistant_prompt=SYSTEM_PROMPT.format(
            domain_policy=environment.get_policy(), agent_instruction=AGENT_INSTRUCTION
        ),
        assistant_tools=tuple(tool.openai_schema for tool in environment.get_tools()),
        user_tools=tuple(tool.openai_schema for tool in user_tools),
    )


@lru_cache
def _guidelines(use_tools: bool) -> str:
    return str(get_global_user_sim_guidelines(use_tools=use_tools))


def user_prompt(domain: Domain, task: Task) -> str:
    """The system prompt of τ²'s user simulator for a task."""
    return str(
        USER_PROMPT.format(
            global_user_sim_guidelines=_guidelines(bool(surface(domain).user_tools)),
            instructions=str(task.user_scenario),
        )
    )
