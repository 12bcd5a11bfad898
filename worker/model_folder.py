"""What a model's folder must hold before a training process is started to load it.

By name only, without importing transformers: the loaders' own errors come minutes later and deep
inside.
"""

from __future__ import annotations

import json
from pathlib import Path

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files, any of which is a tokenizer that transformers can load."""

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Where transformers looks for a chat template besides the tokenizer's config."""

TOKENIZER_CONFIG = "tokenizer_config.json"


def missing_parts(folder: Path) -> list[str]:
    """What ``folder`` lacks of a model, in words; empty if it may be one."""
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        missing.append("a tokenizer (tokenizer.json)")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        missing.append("weights (*.safetensors)")
    return missing


def template_problem(folder: Path) -> str | None:
    """Why the tokenizer in ``folder`` can render no conversation; None if it can."""
    if any((folder / name).exists() for name in TEMPLATES):
        return None
    path = folder / TOKENIZER_CONFIG
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        config = {}
    except (OSError, ValueError):
        return f"its {TOKENIZER_CONFIG} cannot be read"
    if isinstance(config, dict) and config.get("chat_template"):
        return None
    return f"its tokenizer has no chat template ({TEMPLATES[0]}, or in {TOKENIZER_CONFIG})"
