"""Know the sizes of some public models, so that a plan needs neither network nor weights.

The figures are those of each model's published ``config.json``; the instruct variants have the
same ones as the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config

from ragen_pl.models.kernels.attention import choose_attention


@dataclass(frozen=True, slots=True)
class Shape:
    """Hold what decides the number and the form of a decoder's weights.

    Args:
        family: Qwen2's attention has biases on queries, keys and values; Llama's has none.
        layers: Depth.
        hidden: Width.
        intermediate: Width of the feed-forward layers.
        heads: Query heads, of width hidden / heads.
        key_value_heads: Shared heads of keys and values.
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
        """Return it as a configuration of transformers, with an attention function."""
        kind = Qwen2Config if self.family == "qwen2" else LlamaConfig
        made = kind(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            tie_word_embeddings=self.tied,
        )
        choose_attention(made, attention)
        return made

    @property
    def parameters(self) -> int:
        """Count the weights in closed form."""
        shared = self.key_value_heads * (self.hidden // self.heads)
        attention = 2 * self.hidden * (self.hidden + shared)
        if self.family == "qwen2":
            attention += self.hidden + 2 * shared
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * layer + embeddings + self.hidden


SHAPES = {
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 151936, tied=True),
    "qwen2.5-1.5b": Shape("qwen2", 28, 1536, 8960, 12, 2, 151936, tied=True),
    "qwen2.5-3b": Shape("qwen2", 36, 2048, 11008, 16, 2, 151936, tied=True),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 18944, 28, 4, 152064),
    "qwen2.5-14b": Shape("qwen2", 48, 5120, 13824, 40, 8, 152064),
    "qwen2.5-32b": Shape("qwen2", 64, 5120, 27648, 40, 8, 152064),
    "qwen2.5-72b": Shape("qwen2", 80, 8192, 29568, 64, 8, 152064),
    "llama-3-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128256),
    "llama-3-70b": Shape("llama", 80, 8192, 28672, 64, 8, 128256),
}


def shape_of(path: str) -> Shape | None:
    """Return the shape of a model by its name on the Hugging Face Hub; None for a stranger.

    Such as ``Qwen/Qwen2.5-7B-Instruct`` and ``meta-llama/Meta-Llama-3-8B``.
    """
    owner, _, name = path.lower().partition("/")
    if owner not in ("qwen", "meta-llama"):
        return None
    return SHAPES.get(name.removeprefix("meta-").removesuffix("-instruct"))
