"""Between chat messages and token ids: prompts, and the reading of generated text."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
REMEMBERED_TURNS = 4096


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat-completions messages reduced to what a chat template reads.

    Content parts become one string; a tool call keeps the text of its arguments.
    """
    plain: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        entry: dict[str, Any] = {"role": message["role"], "content": content or ""}
        calls = message.get("tool_calls")
        if calls:
            entry["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": call["function"]["arguments"],
                    },
                }
                for call in calls
            ]
        plain.append(entry)
    return plain


@dataclass
class PromptBuilder:
    """Renders requests to token ids, and keeps the ids of earlier turns as they were sampled.

    Text that is decoded and encoded again need not give the same ids. Where a rendered prompt
    starts with a turn that this builder has seen generated, that turn's own ids are used, so a
    conversation's later prompts start with exactly what was sampled.
    """

    tokenizer: PreTrainedTokenizerBase
    _turns: OrderedDict[tuple[int | None, str], list[int]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def text(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        """The rendered prompt, up to where the assistant begins to speak."""
        rendered = self.tokenizer.apply_chat_template(
            plain_messages(messages),
            tools=tools or None,
            tokenize=False,
            add_generation_prompt=True,
        )
        return str(rendered)

    def ids(self, text: str, conversation: int | None = None) -> list[int]:
        """Token ids of a rendered prompt.

        Args:
            conversation: Tells apart conversations in which the same was said with other tokens.
        """
        end = self.tokenizer.eos_token
        position = text.rfind(end)
        while position >= 0:
            cut = position + len(end)
            with self._lock:
                known = self._turns.get((conversation, text[:cut]))
            if known is not None:
                return known + self.encode(text[cut:])
            position = text.rfind(end, 0, position)
        return self.encode(text)

    def remember(
        self,
        prompt_text: str,
        prompt_ids: list[int],
        sampled: list[int],
        conversation: int | None = None,
    ) -> None:
        """Keeps a finished turn; one that ran into the length limit cannot be continued."""
        if not sampled or sampled[-1] != self.tokenizer.eos_token_id:
            return
        with self._lock:
            key = prompt_text + self.decode(sampled)
            self._turns[conversation, key] = [*prompt_ids, *sampled]
            while len(self._turns) > REMEMBERED_TURNS:
                self._turns.popitem(last=False)

    def decode(self, ids: list[int]) -> str:
        """The text of ``ids``, special tokens included."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """The tokenizer's own ids of a rendered prompt."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def parse_reply(text: str) -> dict[str, Any]:
    """An assistant message from generated text, as vLLM's ``hermes`` parser reads it.

    Each ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` becomes a tool call. Where one of
    them is not such an object, the whole text stays content.
    """
    calls: list[dict[str, Any]] = []
    for body in TOOL_CALL.findall(text):
        try:
            call = json.loads(body)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError):
            return {"role": "assistant", "content": text, "tool_calls": None}
        if not isinstance(name, str):
            return {"role": "assistant", "content": text, "tool_calls": None}
        calls.append(
            {
                "id": f"call_{uuid.uuid4().hex[:16]}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                },
            }
        )
    content = TOOL_CALL.sub("", text).strip() if calls else text
    return {"role": "assistant", "content": content or None, "tool_calls": calls or None}
