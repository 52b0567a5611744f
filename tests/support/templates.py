"""Chat templates of the common kinds, written for these tests, and tiny models with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
)
_DROPS_THOUGHTS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and loop.index0 < ns.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
_HEADERS = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ bos_token }}{{ '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date_string }}"
    "{% if messages[0]['role'] == 'system' %}{{ '\n\n' + messages[0]['content'] | trim }}"
    "{% set messages = messages[1:] %}{% endif %}{{ '<|eot_id|>' }}"
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] "
    "+ '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else 'user' %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": _CHATML,
    "chatml with a default system message": _DEFAULT_SYSTEM + _CHATML,
    "thoughts dropped": _DROPS_THOUGHTS,
    "headers and a date": _HEADERS,
    "no system role": _NO_SYSTEM,
    "system folded in": _NO_SYSTEM.replace(
        "{{ raise_exception('System role not supported') }}",
        "{% set ns = namespace(system=messages[0]['content'] + '\n\n') %}"
        "{% set messages = messages[1:] %}",
    ).replace(
        "+ message['content'] | trim",
        "+ (ns.system if ns and loop.first else '') + message['content'] | trim",
    ),
    "system before the last message": (
        "{{ bos_token }}{% set system = messages[0]['content'] if messages[0]['role'] == 'system' "
        "else none %}{% set talk = messages[1:] if system is not none else messages %}"
        "{% for m in talk %}{% if m['role'] == 'user' %}{{ '[INST]' }}"
        "{% if loop.last and system is not none %}{{ system + '\n\n' }}{% endif %}"
        "{{ m['content'] + '[/INST]' }}{% else %}{{ m['content'] + '</s>' }}{% endif %}"
        "{% endfor %}"
    ),
    "thought opened": _DROPS_THOUGHTS.replace(
        "{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}"
    ),
}
"""Shapes, no copies: of Qwen2.5, Qwen3, Llama 3, SmolLM2, Gemma, Mistral and thinking models."""

SPECIAL = (
    *("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"),
)
_TEXTS = (
    "user assistant system model Reward: 0.0 Actions left: 10 State: #_P\n#X_O√\n",
    "Answer with up to 3 actions a turn, separated by || Format: <think>...</think>\n\n",
    "<answer>Up || Down || Left || Right</answer> You are a helpful assistant.\n",
)


def make_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer with merges, such as those models have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 700,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ARCHITECTURES: dict[str, type[PreTrainedConfig]] = {
    "Llama": LlamaConfig,
    "Qwen2": Qwen2Config,
    "Qwen3": Qwen3Config,
    "Gemma3": Gemma3TextConfig,
}


def save_model(
    folder: Path,
    architecture: str = "Qwen2",
    template: str | None = _CHATML,
    **more: Any,
) -> Path:
    """Save a tiny model of random weights with its tokenizer, as a plain Hugging Face folder."""
    tokenizer = make_tokenizer(template)
    sizes = {**SIZES, "vocab_size": len(tokenizer) + 5, **more}
    config = ARCHITECTURES[architecture](**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
