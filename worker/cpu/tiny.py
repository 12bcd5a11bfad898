"""A tiny policy made by code from a seed: tokenizer, chat template and Qwen2 model.

It exists so that the whole loop can run and learn on a CPU. It is no assistant.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END_OF_TURN = "<|im_end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (PAD, END_OF_TURN, "<|im_start|>", "<tool_call>", "</tool_call>")
VOCABULARY = 1024
MAX_POSITIONS = 4096

# Tools are shown as signatures, not as JSON schemas, to keep prompts near 200 tokens. Assistant
# turns are rendered as they are generated, so that a later prompt starts with the earlier tokens.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- if loop.first and tools %}
# Tools
{%- for tool in tools %}
{{ tool.function.name }}({{ tool.function.parameters.properties | join(', ') }})
{%- endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments if \
call.function.arguments is string else call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on ``texts``; any string can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 model of about half a million float32 parameters, initialised from ``seed``."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    return model.float()


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes a folder that ``from_pretrained`` loads."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
