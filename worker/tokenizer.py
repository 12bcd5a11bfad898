"""The tokenizer of the model that is being trained, from its own files and offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class PolicyTokenizer:
    """Counts tokens as the policy's server does.

    Args:
        path: the policy's folder.
        parsed_arguments: whether the server gives its chat template the arguments of tool calls
            as objects (vLLM) or as the text that was sent (our CPU server).
    """

    def __init__(self, path: str, *, parsed_arguments: bool) -> None:
        self._path = path
        self._parsed_arguments = parsed_arguments
        # Loaded in the process that counts: runners are forked after this is made.
        self._loaded: Any = None

    def text_tokens(self, text: str) -> int:
        """Tokens of a text, without special ones."""
        return len(self._tokenizer().encode(text, add_special_tokens=False))

    def prompt_tokens(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> int:
        """Tokens of a chat-completions request, up to where the assistant begins to speak."""
        tokenizer = self._tokenizer()
        plain = [self._plain(message) for message in messages]
        if tokenizer.chat_template is None:
            # Such a model has no chat server either; the text of it all is the nearest there is.
            return self.text_tokens(json.dumps([plain, [*tools]]))
        prompt = tokenizer.apply_chat_template(
            plain, tools=[*tools] or None, tokenize=False, add_generation_prompt=True
        )
        return self.text_tokens(prompt)

    def _plain(self, message: dict[str, Any]) -> dict[str, Any]:
        """What a server lets its chat template see of a message."""
        plain = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("tool_calls"):
            plain["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": self._arguments(call["function"]["arguments"]),
                    },
                }
                for call in message["tool_calls"]
            ]
        return plain

    def _arguments(self, text: str) -> Any:
        return json.loads(text) if self._parsed_arguments else text

    def _tokenizer(self) -> Any:
        if self._loaded is None:
            from transformers import AutoTokenizer

            self._loaded = AutoTokenizer.from_pretrained(self._path, local_files_only=True)
        return self._loaded
