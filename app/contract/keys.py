"""Which environment variables a config may name as holding a key.

A config comes from whoever can reach the API; what it names is read and sent to an endpoint that
it names too. So the operator of each process says which variables are meant for that.
"""

from __future__ import annotations

KEY_VARIABLES = "TAUTRAIN_KEY_VARIABLES"
"""The setting: names, separated by commas."""

DEFAULT_KEY_VARIABLES = "OPENAI_API_KEY"


def key_variables(setting: str | None) -> frozenset[str]:
    """The names that a setting's text lists; nothing set means the default."""
    names = (setting or DEFAULT_KEY_VARIABLES).split(",")
    return frozenset(name.strip() for name in names if name.strip())


def key_not_allowed(variable: str, allowed: frozenset[str], where: str) -> str | None:
    """Why ``variable`` may not be read in the process ``where``; None if it may."""
    if variable in allowed:
        return None
    listed = ", ".join(sorted(allowed))
    return f"{variable} is not allowed: {KEY_VARIABLES} of {where} lists {listed}"
