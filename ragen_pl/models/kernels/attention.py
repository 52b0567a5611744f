"""Attention functions: one that is fast on CPUs in bf16, and PyTorch's own without causal masks.

PyTorch's scaled-dot-product attention on CPU takes about three times as long in bf16 as the batched
matrix products here (16 rows of 250 tokens, 6 heads of 32, gradients included). Trainer and
sampler use the same function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
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
"""Number of queries computed at a time in causal attention; keys after them are not multiplied, and
their scores stay in the cache of a core."""


def grouped_matmul_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    mask_is_causal: bool = False,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend with one batched product per key-value head, its query heads concatenated.

    Args:
        query: (B, H, Q, D); ``key`` and ``value``: (B, K, S, D) with H a multiple of K.
        attention_mask: (B or 1, 1, Q, S): bool (true = visible) or additive.
        scaling: Factor of the scores.
        dropout: Dropout probability, which must be 0.
        mask_is_causal: Whether the mask hides from query t all keys after the one at S − Q + t, as
            the caller promises: the scores of those, about half of the work where Q equals S, are
            then not computed. The mask may hide more. For an argument named ``is_causal``
            transformers would change the model's configuration during the call, which parts of the
            rows in several threads share.
        more: Further arguments of the layer. ``softcap`` bounds scores by tanh, attention sinks
            (``s_aux``) are refused, the rest is ignored.

    Returns:
        Attended values (B, Q, H, D), and None in place of attention weights.

    Raises:
        ValueError: without a mask (causality is never assumed), with dropout or attention sinks.
    """
    if attention_mask is None:
        raise ValueError(f"attention {NAME!r} needs an explicit 4-dimensional mask")
    if dropout:
        raise ValueError(f"attention {NAME!r} has no dropout; set attention_dropout to 0")
    if more.get("s_aux") is not None:
        raise ValueError(f"attention {NAME!r} has no attention sinks; choose another model")
    softcap = more.get("softcap")
    # A compiler would unroll the loop for each number of blocks; on a GPU launches take longer than
    # the scores that blocks save.
    is_whole = torch.compiler.is_compiling() and compiles_as_whole(module)
    if not mask_is_causal or is_whole or query.device.type != "cpu":
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
    """Attend causally, some queries at a time, without computing scores of later keys.

    Compiled layers call it eagerly: compiled code for all lengths would compute those scores, which
    on a CPU costs as much as compilation gains elsewhere.
    """
    length, before = query.shape[2], key.shape[2] - query.shape[2]
    assert before >= 0, "causal attention needs a key for each query"
    query, blocks = query * scaling, []
    for start in range(0, length, _BLOCK):
        rows = slice(start, min(start + _BLOCK, length))
        visible = slice(before + rows.stop)
        blocks.append(
            attend(
                query[:, :, rows],
                key[:, :, visible],
                value[:, :, visible],
                mask[:, :, rows, visible],
                softcap,
            )
        )
    return torch.cat(blocks, dim=1)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, softcap: float | None
) -> Tensor:
    """Return the attended values (B, Q, H, D) of scaled queries (B, H, Q, D)."""
    batch, heads, length, width = query.shape
    shared = key.shape[1]
    stacked = query.reshape(batch, shared, heads // shared * length, width)
    scores = torch.matmul(stacked, key.transpose(-1, -2)).view(batch, heads, length, -1)
    # On CPU the kernels of softmax and its gradient are faster in float32 than in bfloat16.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = _masked_softmax(scores, additive(mask, scores.dtype)).to(value.dtype)
    mixed = torch.matmul(weights.view(batch, shared, -1, weights.shape[-1]), value)
    return mixed.view(batch, heads, length, width).transpose(1, 2).contiguous()


def _masked_softmax(scores: Tensor, bias: Tensor) -> Tensor:
    """Return the softmax of scores plus a bias; the scores may be overwritten."""
    if bias.requires_grad or torch.compiler.is_compiling():
        return torch.softmax(scores + bias, dim=-1)
    weights: Tensor = _MaskedSoftmax.apply(scores, bias)  # type: ignore[no-untyped-call]
    return weights


class _MaskedSoftmax(torch.autograd.Function):
    """Softmax of scores to which a bias is added in place.

    Where autograd records a sum in place on a view, as the scores are, its gradient is copied three
    times, which took a tenth of an update of 135M parameters.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, bias: Tensor) -> Tensor:
        # In place is safe: neither the product nor the cast before it saves its output.
        weights = torch.softmax(scores.add_(bias), dim=-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype), None


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as a bias to add to scores.

    Adding it costs a third of ``masked_fill``, which would copy every head, and needs no operation
    in the backward pass. Scores at hidden positions must be finite.
    """
    if mask.dtype != torch.bool:
        return mask
    if mask.stride(0) == 0:  # expanded: the same for all rows
        mask = mask[:1]
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min)


def causal_sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    mask_is_causal: bool = False,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend with PyTorch's function, as transformers calls it, but drop a causal mask.

    The caller promises with ``mask_is_causal`` that the mask hides only later keys from real
    tokens.
    Without a mask, kernels skip later keys and read shared key-value heads without a copy for each
    query head; on GPUs they are those of flash attention, which accepts no mask. The mask stays in
    float32 on GPUs, for which flash attention has no kernel, and if it is a float mask, to which a
    layer may have added a learned bias.

    Args and returns as in ``grouped_matmul_attention``.

    Raises:
        ValueError: for soft-capped scores.
    """
    if more.get("softcap") is not None:
        raise ValueError("attention 'sdpa' has no softcap: choose grouped_matmul")
    is_square = query.shape[2] == key.shape[2]
    is_plain = attention_mask is None or attention_mask.dtype == torch.bool
    # Queries and keys may still be float32 after rotation, if autocast then casts all three.
    has_kernel = query.device.type == "cpu" or value.dtype != torch.float32
    if mask_is_causal and is_square and is_plain and has_kernel:
        attention_mask, more["is_causal"] = None, True
    attended: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **more
    )
    return attended


def choose_attention(config: PreTrainedConfig, attention: str) -> None:
    """Set the attention function of a model to be built, by its name in a run's config.

    ``sdpa`` is ``causal_sdpa_attention`` for models that look up their attention function in
    transformers' registry, and transformers' own ``sdpa`` for others.
    """
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    looks_up = getattr(kind, "_supports_attention_backend", False)
    config._attn_implementation = SDPA if attention == "sdpa" and looks_up else attention


AttentionInterface.register(NAME, grouped_matmul_attention)
AttentionInterface.register(SDPA, causal_sdpa_attention)
AttentionMaskInterface.register(SDPA, sdpa_mask)  # for masks that a model builds itself


def uses_additive_mask(model: PreTrainedModel) -> bool:
    """Return whether every layer of a model would convert a bool mask to an additive one, which is
    then better done once by the caller."""
    return bool(model.config._attn_implementation == NAME)


def causal_mask(attention_mask: Tensor) -> Tensor:
    """Return the (B, 1, T, T) bool mask of right-padded rows, given their (B, T) padding mask.

    Padding comes last, so causality alone hides it from every real token.
    """
    batch, length = attention_mask.shape
    mask = torch.ones(length, length, dtype=torch.bool, device=attention_mask.device).tril()
    return mask.expand(batch, 1, length, length)
