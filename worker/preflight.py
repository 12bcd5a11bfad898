"""What is checked before a child is started, so that a plain mistake is a plain message."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from app.contract import (
    KEY_VARIABLES,
    Engine,
    OpenAIUser,
    RunConfig,
    RunError,
    key_not_allowed,
    key_variables,
)
from worker.model_folder import missing_parts, template_problem

TINY = "tiny"
"""The model path of the policy that is made by code."""

MOST_SHOWN = 300
"""Most characters of a path that a message repeats."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_YES = frozenset({"1", "true", "yes", "on"})


def preflight(
    config: RunConfig, environment: Mapping[str, str], engines: Collection[Engine]
) -> RunError | None:
    """Why this worker cannot run ``config``; None if nothing speaks against it.

    Codes: ``engine_not_installed``, ``key_not_allowed``, ``missing_key``, ``model_not_found``,
    ``no_chat_template``.
    """
    return (
        _engine_problem(config, engines)
        or _key_problem(config, environment)
        or _model_problem(config, environment)
    )


def is_local(path: str) -> bool:
    """Whether a model path means a place on this machine."""
    return path.startswith(("/", ".", "~")) or os.path.exists(path)


def is_hub_id(path: str) -> bool:
    """Whether a model path is an id ``org/name`` of the model hub."""
    return path != TINY and not is_local(path) and _HUB_ID.fullmatch(path) is not None


def _engine_problem(config: RunConfig, engines: Collection[Engine]) -> RunError | None:
    if config.engine in engines:
        return None
    extra = "cpu" if config.engine is Engine.CPU else "gpu"
    has = ", ".join(sorted(engines)) or "none"
    needs = "" if config.engine is Engine.CPU else " on a machine with a GPU"
    return RunError(
        code="engine_not_installed",
        message=(
            f"engine: this worker cannot run '{config.engine}' (it has: {has}); "
            f"install tautrain[{extra}] where it runs{needs}, or set engine to one that it has"
        ),
    )


def _key_problem(config: RunConfig, environment: Mapping[str, str]) -> RunError | None:
    user = config.user_simulator
    if not isinstance(user, OpenAIUser):
        return None
    allowed = key_variables(environment.get(KEY_VARIABLES))
    refusal = key_not_allowed(user.api_key_env, allowed, "the worker")
    if refusal is not None:
        message = f"user_simulator.api_key_env: {refusal}"
        return RunError(code="key_not_allowed", message=message)
    if environment.get(user.api_key_env):
        return None
    return RunError(
        code="missing_key",
        message=(
            f"user_simulator.api_key_env: the worker's environment has no {user.api_key_env}; "
            "set it where the worker runs and start the worker again, or name another variable"
        ),
    )


def _model_problem(config: RunConfig, environment: Mapping[str, str]) -> RunError | None:
    path = config.model.path
    if path == TINY:
        return None
    if is_local(path):
        # Not Path.expanduser, which raises where there is no such user.
        place = os.path.expanduser(path)
        if os.path.exists(place):
            return _folder_problem(path, place)
        why = "does not exist on this worker"
    elif not is_hub_id(path):
        why = "is neither a path on this worker nor a hub id (org/name)"
    elif _cached(path, environment):
        return None
    elif config.engine is Engine.CPU:
        why = "is a hub id that is not in the cache of this worker, and engine 'cpu' loads none"
    elif _hub_is_off(environment):
        why = "is a hub id, but HF_HUB_OFFLINE forbids the hub and it is not in the cache"
    else:
        return None
    return RunError(
        code="model_not_found",
        message=(
            f"model.path: '{path[:MOST_SHOWN]}' {why}; "
            "give a path that exists where the worker runs, "
            f"a hub id that it has or may load, or '{TINY}'"
        ),
    )


def _folder_problem(path: str, place: str) -> RunError | None:
    """Why what exists at ``place`` is no model that can be trained."""
    shown = path[:MOST_SHOWN]
    if not os.path.isdir(place):
        message = f"model.path: '{shown}' is not a folder; give the folder that holds the model"
        return RunError(code="model_not_found", message=message)
    missing = missing_parts(Path(place))
    if missing:
        message = (
            f"model.path: the folder '{shown}' holds no whole model: no {', no '.join(missing)}"
        )
        return RunError(code="model_not_found", message=message)
    template = template_problem(Path(place))
    if template is None:
        return None
    message = f"model.path: '{shown}': {template}; take a chat model (-Instruct), or add one"
    return RunError(code="no_chat_template", message=message)


def _hub_is_off(environment: Mapping[str, str]) -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(environment.get(name, "").lower() in _YES for name in names)


def _cached(model_id: str, environment: Mapping[str, str]) -> bool:
    """Whether the hub's cache has this model's config, where the hub's own library looks for it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or os.path.join(caches, "huggingface")
    cache = (
        environment.get("HF_HUB_CACHE")
        or environment.get("HUGGINGFACE_HUB_CACHE")
        or os.path.join(home, "hub")
    )
    try:
        found = try_to_load_from_cache(
            model_id, "config.json", cache_dir=os.path.expanduser(os.path.expandvars(cache))
        )
    except HFValidationError:
        return False
    # Not a path where the cache does not know, or knows that the model has no such file.
    return isinstance(found, str)
