"""Read tokens behind a cache: what comes out are the logits of what follows."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from ragen_pl.models.kernels.attention import adds_masks
from ragen_pl.models.kernels.fused_decoder import FusedDecoder, supports_fused_decoding
from ragen_pl.models.kernels.kv_cache import RaggedCache


class DecodeStep(Protocol):
    """Compute (n, V) float32 logits behind the last column of a block of tokens (n, Q), whose keys
    and values go to the cache."""

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: RaggedCache
    ) -> Tensor: ...


class ModelForward:
    """Read with a model's own forward: any model, however its weights are wrapped or sharded."""

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
    """Make the quickest reader there is for a model as it is now wrapped, with its weights as they
    are now, in the type that autocast, where it is on, computes in; for rows of so many tokens at
    most."""
    if not supports_fused_decoding(model):
        return ModelForward(model)
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else torch.float32
    return FusedDecoder(model, dtype, max_context)


def open_cache(model: PreTrainedModel, rows: int, max_context: int, stride: int) -> RaggedCache:
    """Make an empty cache whose masks are as the model's attention takes them."""
    return RaggedCache(rows, max_context, model.device, adds_masks(model), stride)
