"""The arithmetic of a decoder's passes, and the bytes that a step of decoding reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from ragen_pl.distributed.sharding import transformer_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """The sizes of a decoder that determine its arithmetic.

    Args:
        layer_weights: Weights of all linear layers in the transformer blocks, adapters included.
        attention: Width of the queries, summed over the layers.
        head_weights: Weights of the vocabulary projection.
        cached: Numbers that are cached per token: keys and values of all layers.
    """

    layer_weights: int
    attention: int
    head_weights: int
    cached: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> DecoderSizes:
        """Count a model's sizes; its weights may be on the meta device."""
        config = model.config.get_text_config()
        heads, layers = config.num_attention_heads, config.num_hidden_layers
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        linear = (
            part
            for block in transformer_blocks(model)
            for part in block.modules()
            if isinstance(part, nn.Linear)
        )
        return cls(
            layer_weights=sum(part.weight.numel() for part in linear),
            attention=layers * heads * width,
            head_weights=config.vocab_size * config.hidden_size,
            cached=2 * layers * (config.num_key_value_heads or heads) * width,
        )

    def forward_operations(self, tokens: float, head_tokens: float, mean_context: float) -> float:
        """Count the multiplications and additions of a forward pass.

        Args:
            tokens: Tokens read, without padding.
            head_tokens: Tokens projected onto the vocabulary.
            mean_context: Mean number of tokens that a token attends to.
        """
        attention = 4 * self.attention * mean_context * tokens
        return 2 * self.layer_weights * tokens + attention + 2 * self.head_weights * head_tokens

    def step_bytes(self, itemsize: int, rows: float = 0, context: float = 0) -> float:
        """Count the bytes that must be read to decode one token per row.

        Args:
            itemsize: Bytes of a number.
            rows: Rows decoded together; 0 counts the weights alone.
            context: Mean number of cached tokens of a row.
        """
        return itemsize * (self.layer_weights + self.head_weights + self.cached * rows * context)
