"""Pretrained causal language models of Hugging Face, by name or from a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from peft import PeftModel
from peft.utils import CONFIG_NAME
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from ragen_pl.distributed.collectives import rank
from ragen_pl.models.base import LanguageModel, PolicyModel, drop_dropout
from ragen_pl.models.chat_template import ChatTemplate
from ragen_pl.models.embedded import is_embedded, read_markers
from ragen_pl.models.kernels.attention import choose_attention
from ragen_pl.models.message_markers import ChatMarkers
from ragen_pl.models.meta_device import build_on_meta
from ragen_pl.models.parity_check import check_log_prob_parity

_TOKENIZER = "tokenizer_config.json"
MODELS = Path("models")
"""The folder in the working directory into which ``run.py fetch`` writes models, each under its
name."""


@dataclass(frozen=True)
class PretrainedModel(PolicyModel):
    """A pretrained causal language model that has a chat template.

    Args:
        path: Name on the Hugging Face Hub, or a folder such as ``runs/sokoban/policy/best``. A
            folder of peft adapters stands for their base with the adapters merged into it; a
            tokenizer in it, with its chat template, takes the place of the base's.
        dtype: Type of the weights: float32 without ``model.lora``, because all weights are then
            trained; bfloat16 is for a frozen base. ``trainer.precision`` is the type of
            computation.
        attention: The attention function of trainer and sampler: PyTorch's (sdpa), or batched
            matrix products (grouped_matmul), which are faster in bf16 on CPUs and can cap scores,
            as some models need. (Gemma 2 caps its logits, too, and is not supported.)
        template_options: Variables of the chat template, such as ``{enable_thinking: false}``.
    """

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["sdpa", "grouped_matmul"] = "sdpa"
    template_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """The model's name or folder."""
        return self.path

    def build(self, pieces: Iterable[str], seed: int) -> LanguageModel:
        """Load tokenizer and model; check that training and sampling use the model's own log-probs.

        Args:
            pieces: Unused: the tokenizer is the model's own.
            seed: Unused: the weights are loaded.

        Raises:
            ValueError: when there is no such model, or it cannot be trained here.
        """
        disable_progress_bar()  # type: ignore[no-untyped-call]  # it would print over the display
        tokenizer, markers = self._load_tokenizer()
        config, dtype = self._config(), getattr(torch, self.dtype)
        limit = context_limit(config, self.path)
        model = self._load(AutoModelForCausalLM, self._base, config=config, dtype=dtype)
        if self._base != self.path:
            adapted = PeftModel.from_pretrained(model, self.path)
            model = cast(Any, adapted).merge_and_unload().requires_grad_(True)
        drop_dropout(model)
        check_log_prob_parity(model, self.path)
        return LanguageModel(model, tokenizer, markers, limit)

    def build_without_weights(self, pieces: Iterable[str]) -> LanguageModel:
        """Load the tokenizer and the configuration; build the model on the meta device."""
        tokenizer, markers = self._load_tokenizer()
        config = self._config()
        limit = context_limit(config, self.path)
        return LanguageModel(build_on_meta(config, self.dtype), tokenizer, markers, limit)

    def _load_tokenizer(self) -> tuple[PreTrainedTokenizerFast, ChatMarkers]:
        """Load the tokenizer and its chat markers."""
        has_own = (Path(self.path) / _TOKENIZER).is_file()  # beside adapters there may be none
        place = self.path if has_own else self._base
        tokenizer = cast(PreTrainedTokenizerFast, self._load(AutoTokenizer, place))
        if not tokenizer.is_fast:
            raise ValueError(
                f"policy.path is {self.path}, whose tokenizer is {type(tokenizer).__name__}; only "
                "those of the tokenizers library are supported"
            )
        template = ChatTemplate(tokenizer, self.template_options)
        if is_embedded(tokenizer):  # which keeps white space
            return tokenizer, read_markers(tokenizer)
        markers, rewrites = template.markers()
        if rewrites and rank() == 0:
            print(
                f"{self.path}: its chat template would rewrite earlier responses (such as their "
                "thoughts); here they stay in the context as they were sampled"
            )
        return tokenizer, markers

    def architecture(self, pieces: Iterable[str]) -> PreTrainedConfig:
        """Read the model's configuration from its folder, or from the local cache of the Hub.

        Raises:
            ValueError: when the configuration is not on this machine.
        """
        try:
            config: PreTrainedConfig = AutoConfig.from_pretrained(self._base, local_files_only=True)
        except OSError as error:
            raise ValueError(
                f"policy.path is {self.path}, whose config.json is not on this machine: name a "
                "model of its size with --shape (such as qwen2.5-7b), or give a folder that has it"
            ) from error
        choose_attention(config, self.attention)
        return config

    def _config(self) -> PreTrainedConfig:
        config: PreTrainedConfig = self._load(AutoConfig, self._base)
        choose_attention(config, self.attention)
        return config

    @property
    def _base(self) -> str:
        """The model itself or, of a folder of adapters, the model that they adapt.

        Raises:
            ValueError: when the adapters do not name it.
        """
        file = Path(self.path) / CONFIG_NAME
        if not file.is_file():
            return self.path
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
        if not base:
            raise ValueError(
                f"policy.path is {self.path}, whose {CONFIG_NAME} names no model that the adapters "
                "are for: set its base_model_name_or_path"
            )
        return str(base)

    def _load(self, kind: Any, place: str, **options: Any) -> Any:
        """Load something from a folder, or by its name on the Hub."""
        told = f"policy.path is {self.path}"
        if place != self.path:
            told += f", adapters for {place}"
        try:
            return kind.from_pretrained(place, **options)
        except SafetensorError as error:
            raise ValueError(
                f"{told}, whose weights are damaged ({error}): copy them anew"
            ) from error
        except OSError as error:
            if Path(place).parent == MODELS:
                raise ValueError(
                    f"{told}, which holds no model yet: run python run.py fetch "
                    f"{Path(place).name} in this folder, or give the folder that has it"
                ) from error
            if Path(place).is_absolute():
                raise ValueError(f"{told}; there is no such folder, or no model in it") from error
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ValueError(
                f"{told}, which is neither the folder of a model nor available from the Hugging "
                f"Face Hub: {reason}"
            ) from error


def context_limit(config: PreTrainedConfig, path: str) -> int | None:
    """Return the largest context that a model was trained for, in tokens.

    Every layer gets a causal mask here, which equals that of a sliding window for contexts up to
    the window's width. With LongRoPE it is the length before the extension: beyond it a row's
    first tokens are encoded otherwise than they were when they were sampled.

    Raises:
        ValueError: when a layer is neither full nor sliding attention.
    """
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(
            f"policy.path is {path}, which has layers of kind {', '.join(sorted(unknown))}; only "
            "full and sliding attention are supported"
        )
    limits = [getattr(text, "max_position_embeddings", None)]
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # whose angles are others in longer rows
        limits.append(rope.get("original_max_position_embeddings"))
    if "sliding_attention" in kinds or not kinds:
        limits.append(getattr(text, "sliding_window", None))
    return min((limit for limit in limits if limit is not None), default=None)
