"""Decode steps of the sampler: one forward from a block of tokens and a cache to logits."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from ragen_pl.models.kernels.attention import uses_additive_mask
from ragen_pl.models.kernels.fused_decoder import FusedDecoder, supports_fused_decoding
from ragen_pl.models.kernels.kv_cache import RaggedCache


class DecodeStep(Protocol):
    """A function from a block of tokens (n, Q), whose keys and values it writes to the cache, to
    the (n, V) float32 logits after the last column."""

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: RaggedCache
    ) -> Tensor: ...


class ModelForward:
    """A decode step by the model's own forward, for any model, wrapped or sharded."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        logits: Tensor = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        return logits.float()


def build_decode_step(model: PreTrainedModel, max_context: int) -> DecodeStep:
    """Return the fastest decode step for a model.

    Build another one after the model's weights or wrappers change. It computes in autocast's type
    if autocast is enabled.

    Args:
        model: The causal language model.
        max_context: Upper bound of a row's length.
    """
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else torch.float32
    if not supports_fused_decoding(model, dtype):
        return ModelForward(model)
    return FusedDecoder(model, dtype, max_context)


def open_cache(model: PreTrainedModel, rows: int, max_context: int, stride: int) -> RaggedCache:
    """Return an empty cache with the kind of mask that the model's attention takes."""
    return RaggedCache(rows, max_context, model.device, uses_additive_mask(model), stride)
