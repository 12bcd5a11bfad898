"""What a participant said: parsed from the framework's messages, and written back for a model.

Text is repaired here, before anything reads it: a lone surrogate (a model can produce one as a JSON
escape) cannot be encoded, and would break a report, a log or the database far from its cause.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_framework import Content, Message

from app.contract import MessageDoc, ToolCallDoc

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Call:
    """A tool call. ``arguments`` is None where ``raw`` is not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    raw: str

    def doc(self) -> ToolCallDoc:
        """The call as it is reported."""
        return ToolCallDoc(
            id=self.id,
            name=self.name,
            arguments=self.raw if self.arguments is None else self.arguments,
        )


@dataclass(frozen=True)
class Utterance:
    """One message of the assistant or the user."""

    text: str | None
    calls: tuple[Call, ...] = ()
    repaired: bool = False

    @property
    def empty(self) -> bool:
        """Neither words nor a tool call: τ² refuses such a message."""
        return not self.calls and not (self.text or "").strip()


def repair(text: str) -> str:
    """The text with U+FFFD for each surrogate that stands alone."""
    if not _LONE_SURROGATE.search(text):
        return text
    # Through UTF-16, two halves that belong together become the character they mean.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


DEEPEST = 64
"""Deepest nesting of a tool call's arguments."""


def parse_arguments(raw: str) -> dict[str, Any] | None:
    """The JSON object in a tool call's arguments, or None where there is none.

    Numbers that JSON does not know (NaN, infinities) make it None as well: a database that holds a
    NaN never equals itself, so the reward would be decided by that. So does nesting beyond
    ``DEEPEST``, which pydantic cannot write and no tool takes.
    """
    try:
        value = json.loads(raw, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _deeper_than(value, DEEPEST) else None


def _deeper_than(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than ``levels`` deep; looks no deeper itself."""
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper_than(part, levels - 1) for part in parts)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is not finite")
    return number


def heard(messages: Sequence[Message], call_number: int) -> Utterance:
    """What a chat client's answer says. ``call_number`` numbers calls that came without an id."""
    texts: list[str] = []
    calls: list[Call] = []
    repaired = False
    for content in (content for message in messages for content in message.contents):
        if content.type == "text" and content.text:
            texts.append(content.text)
        elif content.type == "function_call":
            call, changed = _call(content, call_number + len(calls))
            calls.append(call)
            repaired = repaired or changed
    text = "".join(texts) or None
    if text is not None and (whole := repair(text)) != text:
        text, repaired = whole, True
    return Utterance(text=text, calls=tuple(calls), repaired=repaired)


def _call(content: Content, number: int) -> tuple[Call, bool]:
    given = content.arguments
    if given is None or given == "":
        given = "{}"  # OpenAI's servers leave the arguments of a tool without parameters out
    raw = given if isinstance(given, str) else json.dumps(given)
    name = content.name or ""
    whole_raw, whole_name = repair(raw), repair(name)
    arguments = parse_arguments(whole_raw)
    whole_arguments = _repair_values(arguments)
    changed = (whole_raw, whole_name, whole_arguments) != (raw, name, arguments)
    call = Call(
        id=repair(content.call_id or f"call_{number}"),
        name=whole_name,
        arguments=whole_arguments,
        raw=whole_raw,
    )
    return call, changed


def _repair_values(value: Any) -> Any:
    """Repairs the strings of a parsed JSON value; an escape such as ``\\ud800`` hides in them."""
    if isinstance(value, str):
        return repair(value)
    if isinstance(value, list):
        return [_repair_values(item) for item in value]
    if isinstance(value, Mapping):
        return {repair(key): _repair_values(item) for key, item in value.items()}
    return value


def as_request(doc: MessageDoc, *, speaker: str) -> Message:
    """A message of the conversation as the model that plays ``speaker`` is shown it.

    Its own messages have the role ``assistant`` and the other side's the role ``user``; for the
    user simulator this flips the roles, as τ² does.
    """
    if doc.role == "tool":
        result = Content.from_function_result(call_id=doc.tool_call_id or "", result=doc.content)
        return Message(role="tool", contents=[result])
    contents = [Content.from_text(doc.content)] if doc.content else []
    contents += [
        Content.from_function_call(
            call_id=call.id, name=call.name, arguments=_request_arguments(call.arguments)
        )
        for call in doc.tool_calls or []
    ]
    return Message(role="assistant" if doc.role == speaker else "user", contents=contents)


def as_chat(doc: MessageDoc, *, speaker: str) -> dict[str, Any]:
    """``as_request``'s message as the chat-completions API words it, for a chat template."""
    if doc.role == "tool":
        return {"role": "tool", "tool_call_id": doc.tool_call_id or "", "content": doc.content}
    chat: dict[str, Any] = {
        "role": "assistant" if doc.role == speaker else "user",
        "content": doc.content,
    }
    if doc.tool_calls:
        chat["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _request_arguments(call.arguments)},
            }
            for call in doc.tool_calls
        ]
    return chat


def _request_arguments(arguments: dict[str, Any] | str) -> str:
    """Arguments as text that every server can parse: vLLM answers 400 to any that is not JSON."""
    if not isinstance(arguments, str):
        return json.dumps(arguments)
    try:
        # An escaped half of a surrogate pair is JSON and yet no text that could be encoded.
        json.dumps(json.loads(arguments), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return json.dumps(arguments)
    return arguments
