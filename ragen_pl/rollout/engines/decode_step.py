"""Decode steps of the sampler: one forward from a block of tokens and a cache to logits, and to the
value where the policy has a value head."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from ragen_pl.models.kernels.attention import uses_additive_mask
from ragen_pl.models.kernels.fused_decoder import (
    FusedDecoder,
    supports_fused_decoding,
    with_value,
)
from ragen_pl.models.kernels.kv_cache import RaggedCache


class DecodeStep(Protocol):
    """A function from a block of tokens (n, Q), whose keys and values it writes to the cache, to
    the (n, V) float32 logits after the last column; with a value head (n, V + 1), the value of that
    state behind them, so that both are cut, copied and captured as one tensor."""

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: RaggedCache
    ) -> Tensor: ...


class ModelForward:
    """A decode step by the model's own forward, for any model, wrapped or sharded."""

    def __init__(self, model: PreTrainedModel, value_head: nn.Module | None = None) -> None:
        self.model, self.value_head = model, value_head

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        block: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions,
            "past_key_values": cache,
            "use_cache": True,
        }
        if self.value_head is None:
            logits: Tensor = self.model(**block, logits_to_keep=1).logits[:, -1]
            return logits.float()
        # As the trainer scores: by the backbone and both heads.
        states: Tensor = self.model.base_model(**block).last_hidden_state[:, -1]
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        return with_value(head(states).float(), self.value_head(states))


def build_decode_step(
    model: PreTrainedModel, max_context: int, value_head: nn.Module | None = None
) -> DecodeStep:
    """Return the fastest decode step for a model.

    Build another one after the model's weights or wrappers change. It computes in autocast's type
    if autocast is enabled.

    Args:
        model: The causal language model.
        max_context: Upper bound of a row's length.
        value_head: The policy's value head, if values are wanted, too.
    """
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else torch.float32
    if not supports_fused_decoding(model, dtype):
        return ModelForward(model, value_head)
    return FusedDecoder(model, dtype, max_context, value_head)


def open_cache(model: PreTrainedModel, rows: int, max_context: int, stride: int) -> RaggedCache:
    """Return an empty cache with the kind of mask that the model's attention takes."""
    return RaggedCache(rows, max_context, model.device, uses_additive_mask(model), stride)
