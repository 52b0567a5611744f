"""Register an attention that is fast on CPUs in bf16, and PyTorch's own without causal masks.

PyTorch's scaled-dot-product attention on CPU takes about three times as long in bf16 as the batched
matrix products below (16 rows of 250 tokens, 6 heads of 32, gradients included). Trainer and
sampler use the same function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ragen_pl.models.compile import compiles_as_whole

NAME = "grouped_matmul"
SDPA = "causal_sdpa"

_BLOCK = 64
"""Queries of a causal product done at a time: what is ahead of a block is never computed."""


def grouped_matmul_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend with one batched product per key-value head, its query heads side by side.

    Args:
        query: (B, H, Q, D); ``key`` and ``value``: (B, K, S, D) with H a multiple of K.
        attention_mask: (B or 1, 1, Q, S): bool (true = visible) or additive.
        is_causal: The caller's promise that Q is S and that the mask hides what is ahead, which
            then is not computed: about half of the work. The mask may hide more.
        more: ``softcap``, a bound that tanh keeps the scores under; the rest is not looked at.

    Returns:
        (B, Q, H, D), and no weights.

    Raises:
        ValueError: without a mask (it never guesses causality), with dropout or attention sinks.
    """
    if attention_mask is None:
        raise ValueError(f"attention {NAME!r} needs an explicit 4-dimensional mask")
    if dropout:
        raise ValueError(f"attention {NAME!r} has no dropout; set attention_dropout to 0")
    if more.get("s_aux") is not None:
        raise ValueError(f"attention {NAME!r} has no attention sinks; choose another model")
    softcap = more.get("softcap")
    # A compiler would unroll each number of blocks.
    if not is_causal or (torch.compiler.is_compiling() and compiles_as_whole(module)):
        return attend(query * scaling, key, value, attention_mask, softcap), None
    attended: Tensor = _attend_in_blocks(query, key, value, attention_mask, scaling, softcap)
    return attended, None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """Attend causally, without what is ahead.

    Compiled layers call it as it is written: a compiler's one code for all lengths would compute
    what is ahead, and on a CPU lose by that all it gains elsewhere.
    """
    assert query.shape[2] == key.shape[2], "a causal product is square"
    query, blocks, length = query * scaling, [], query.shape[2]
    for start in range(0, length, _BLOCK):
        rows = slice(start, min(start + _BLOCK, length))
        seen = slice(rows.stop)
        blocks.append(
            attend(
                query[:, :, rows],
                key[:, :, seen],
                value[:, :, seen],
                mask[:, :, rows, seen],
                softcap,
            )
        )
    return torch.cat(blocks, dim=1)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, softcap: float | None
) -> Tensor:
    """Return (B, Q, H, D) for scaled queries (B, H, Q, D)."""
    batch, heads, length, width = query.shape
    shared = key.shape[1]
    stacked = query.reshape(batch, shared, heads // shared * length, width)
    scores = torch.matmul(stacked, key.transpose(-1, -2)).view(batch, heads, length, -1)
    # On CPU the kernels of softmax and its gradient are faster in float32 than in bfloat16.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    # In place, which no gradient minds: neither a product nor a change of type looks back at it.
    weights = torch.softmax(scores.add_(additive(mask, scores.dtype)), dim=-1).to(value.dtype)
    mixed = torch.matmul(weights.view(batch, shared, -1, weights.shape[-1]), value)
    return mixed.view(batch, heads, length, width).transpose(1, 2).contiguous()


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to scores to hide what a mask hides.

    Adding costs a third of filling, for which every head would be copied, and no gradient passes
    through it. What is hidden must be finite.
    """
    if mask.dtype != torch.bool:
        return mask
    if mask.stride(0) == 0:  # the same for all rows
        mask = mask[:1]
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min)


def causal_sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend with PyTorch's function, as transformers calls it; but without the mask where the
    caller promises that it hides what is ahead, and besides nothing that anyone looks at.

    Kernels then leave out what is ahead, read heads of keys and values that queries share as they
    are, where a copy for each query's head would be made, and on GPUs are those of flash attention,
    which know no masks. Of the latter none takes float32: there the mask stays. So does one of
    numbers, to which a layer has added what it learns.

    Args and returns as in ``grouped_matmul_attention``, but for the promise.

    Raises:
        ValueError: where scores are soft-capped.
    """
    if more.get("softcap") is not None:
        raise ValueError("attention 'sdpa' knows no softcap: choose grouped_matmul")
    is_square = query.shape[2] == key.shape[2]
    is_plain = attention_mask is None or attention_mask.dtype == torch.bool
    # Rotated queries and keys may be in float32 still, where autocast rounds all three.
    has_kernel = query.device.type == "cpu" or value.dtype != torch.float32
    if is_causal and is_square and is_plain and has_kernel:
        attention_mask = None
    attended: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, is_causal=is_causal, **more
    )
    return attended


def choose_attention(config: PreTrainedConfig, attention: str) -> None:
    """Set the attention function of a model that is to be made, by the name a run's config has.

    PyTorch's is called through ``causal_sdpa_attention`` by models that look functions up.
    """
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    looks_up = getattr(kind, "_supports_attention_backend", False)
    config._attn_implementation = SDPA if attention == "sdpa" and looks_up else attention


AttentionInterface.register(NAME, grouped_matmul_attention)
AttentionInterface.register(SDPA, causal_sdpa_attention)
AttentionMaskInterface.register(SDPA, sdpa_mask)  # where a model makes its own


def adds_masks(model: PreTrainedModel) -> bool:
    """Say whether every layer of a model would make a bool mask additive for itself, so that who
    makes the mask had better do it once."""
    return bool(model.config._attn_implementation == NAME)


def causal_mask(attention_mask: Tensor) -> Tensor:
    """Build the (B, 1, T, T) bool mask of right-padded rows from their (B, T) padding mask.

    Padding comes last, so causality alone hides it from every real token.
    """
    batch, length = attention_mask.shape
    mask = torch.ones(length, length, dtype=torch.bool, device=attention_mask.device).tril()
    return mask.expand(batch, 1, length, length)
