"""The sizes of some public models, so that a plan needs neither network access nor weights.

The figures are those of each model's published ``config.json``; instruct variants have the sizes of
their base model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config

from ragen_pl.models.kernels.attention import choose_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that determine a decoder's weights.

    Args:
        family: Architecture. Qwen2 has biases on queries, keys and values; Llama has none.
        layers: Number of layers.
        hidden: Width of the hidden states.
        intermediate: Width of the feed-forward layers.
        heads: Query heads, of width hidden / heads.
        key_value_heads: Heads of keys and values.
        vocabulary: Rows of the embedding.
        tied: Whether the vocabulary projection is the embedding.
    """

    family: Literal["qwen2", "llama"]
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool = False

    def config(self, attention: str = "sdpa") -> PreTrainedConfig:
        """Return the configuration in transformers, with an attention function."""
        kind = Qwen2Config if self.family == "qwen2" else LlamaConfig
        config = kind(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            tie_word_embeddings=self.tied,
        )
        choose_attention(config, attention)
        return config


SHAPES = {
    "qwen2.5-0.5b": Shape(
        family="qwen2",
        layers=24,
        hidden=896,
        intermediate=4864,
        heads=14,
        key_value_heads=2,
        vocabulary=151936,
        tied=True,
    ),
    "qwen2.5-1.5b": Shape(
        family="qwen2",
        layers=28,
        hidden=1536,
        intermediate=8960,
        heads=12,
        key_value_heads=2,
        vocabulary=151936,
        tied=True,
    ),
    "qwen2.5-3b": Shape(
        family="qwen2",
        layers=36,
        hidden=2048,
        intermediate=11008,
        heads=16,
        key_value_heads=2,
        vocabulary=151936,
        tied=True,
    ),
    "qwen2.5-7b": Shape(
        family="qwen2",
        layers=28,
        hidden=3584,
        intermediate=18944,
        heads=28,
        key_value_heads=4,
        vocabulary=152064,
    ),
    "qwen2.5-14b": Shape(
        family="qwen2",
        layers=48,
        hidden=5120,
        intermediate=13824,
        heads=40,
        key_value_heads=8,
        vocabulary=152064,
    ),
    "qwen2.5-32b": Shape(
        family="qwen2",
        layers=64,
        hidden=5120,
        intermediate=27648,
        heads=40,
        key_value_heads=8,
        vocabulary=152064,
    ),
    "qwen2.5-72b": Shape(
        family="qwen2",
        layers=80,
        hidden=8192,
        intermediate=29568,
        heads=64,
        key_value_heads=8,
        vocabulary=152064,
    ),
    "llama-3-8b": Shape(
        family="llama",
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=32,
        key_value_heads=8,
        vocabulary=128256,
    ),
    "llama-3-70b": Shape(
        family="llama",
        layers=80,
        hidden=8192,
        intermediate=28672,
        heads=64,
        key_value_heads=8,
        vocabulary=128256,
    ),
}
"""Models by the name that ``--shape`` takes."""


def shape_of(path: str) -> Shape | None:
    """Return the shape of a model by its name on the Hugging Face Hub; None for an unknown one.

    Examples of known names: ``Qwen/Qwen2.5-7B-Instruct`` and ``meta-llama/Meta-Llama-3-8B``.
    """
    owner, _, name = path.lower().partition("/")
    if owner not in ("qwen", "meta-llama"):
        return None
    return SHAPES.get(name.removeprefix("meta-").removesuffix("-instruct"))
