"""The vocabulary projection, computed a chunk of tokens at a time.

The logits, (tokens, V) in float32, would be the largest tensor of an update: 4.9 GB for 8,000
tokens and a vocabulary of 150,000. Here they never exist at once, forward or backward: each chunk's
logits are reduced immediately to two numbers per token, and computed again for the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

_CHUNK_ELEMENTS, _CHUNK_ELEMENTS_ON_CPU = 1 << 25, 1 << 22
"""Number of logits of one chunk: on a GPU 128 MiB in float32, 223 tokens for a vocabulary of
150,000, enough for a matrix product at full speed. On a CPU 16 MiB, which stay in its cache, while
the C library takes new pages from the system for each tensor of more than 32: an update of 135M
parameters took a sixth longer."""
_KEPT_ELEMENTS = 1 << 25
"""Largest number of logits that are kept for the gradient, not recomputed: those of a batch with a
small vocabulary."""


def chunk_elements_on(device: str) -> int:
    """Return the number of logits of one chunk on a kind of device, ``cpu`` or any other."""
    return _CHUNK_ELEMENTS_ON_CPU if device == "cpu" else _CHUNK_ELEMENTS


def chunked_log_prob_and_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of p, in nats, for p = softmax(head(states) / T).

    The products are computed in autocast's type if it is enabled, everything else at least in
    float32. Gradients are computed only for tensors that require them; a frozen head costs none.

    Args:
        states: (n, d).
        weight: (V, d) of the head; it may be tied to the embeddings.
        bias: (V,) or None.
        targets: (n,) int.
        temperature: T.
        chunk_elements: Upper bound of the number of logits that are computed at a time; a chunk has
            at least one token. None for what suits the device.

    Returns:
        Two (n,) tensors.

    Raises:
        ValueError: when the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; a log-prob needs one above 0 (1 is usual)")
    if chunk_elements is None:
        chunk_elements = chunk_elements_on(states.device.type)
    rows = max(1, chunk_elements // weight.shape[0])
    result: tuple[Tensor, Tensor] = _ChunkedHead.apply(  # type: ignore[no-untyped-call]
        states, weight, bias, targets, temperature, rows
    )
    return result


class _ChunkedHead(torch.autograd.Function):
    """Log-prob and entropy with gradients with respect to states and head.

    With z = logits / T: ∂ log p(y) / ∂z = 1[y] − p and ∂H / ∂z = −p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        device = states.device.type
        ctx.dtype = states.dtype
        if torch.is_autocast_enabled(device):
            ctx.dtype = torch.get_autocast_dtype(device)
        ctx.temperature, ctx.rows, ctx.device = temperature, rows, device
        log_probs = states.new_empty(len(states), dtype=_wide(ctx.dtype))
        entropy = torch.empty_like(log_probs)
        # A small batch's log-probs are kept: to recompute them would double their cost.
        is_kept = any(ctx.needs_input_grad) and len(states) * len(weight) <= _KEPT_ELEMENTS
        kept = list[Tensor]()
        with torch.autocast(device, enabled=False):
            head = _cast(ctx.dtype, weight, bias)
            for part in _parts(len(states), rows):
                log_p = _log_softmax(states[part].to(ctx.dtype), *head, temperature)
                if is_kept:
                    kept.append(log_p)
                log_probs[part] = log_p.gather(-1, targets[part, None])[:, 0]
                entropy[part] = -torch.linalg.vecdot(log_p.exp(), log_p)
                del log_p  # or it would live beside the next chunk's
        ctx.save_for_backward(states, weight, bias, targets, entropy, *kept)
        return log_probs, entropy

    @staticmethod
    @once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, d_log_probs: Tensor, d_entropy: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets, entropy, *kept = ctx.saved_tensors
        for_states, for_weight, for_bias = ctx.needs_input_grad[:3]
        wide = _wide(ctx.dtype)
        d_states = torch.zeros_like(states) if for_states else None
        d_weight = torch.zeros_like(weight, dtype=wide) if for_weight else None
        d_bias = torch.zeros_like(bias, dtype=wide) if for_bias else None
        with torch.autocast(ctx.device, enabled=False):
            head = _cast(ctx.dtype, weight, bias)
            for number, part in enumerate(_parts(len(states), ctx.rows)):
                inputs = states[part].to(ctx.dtype)
                log_p = kept[number] if kept else _log_softmax(inputs, *head, ctx.temperature)
                d_logits = _logit_gradient(
                    log_p, targets[part], entropy[part], d_log_probs[part], d_entropy[part]
                ).div_(ctx.temperature)
                if d_bias is not None:
                    d_bias += d_logits.sum(0)
                d_logits = d_logits.to(ctx.dtype)
                if d_states is not None:
                    d_states[part] = (d_logits @ head[0]).to(states.dtype)
                if d_weight is not None:
                    d_weight += d_logits.T @ inputs
                del log_p, d_logits  # or they would live beside the next chunk's
        d_weight = d_weight if d_weight is None else d_weight.to(weight.dtype)
        d_bias = d_bias if d_bias is None else d_bias.to(bias.dtype)
        return d_states, d_weight, d_bias, None, None, None


def _logit_gradient(
    log_p: Tensor, targets: Tensor, entropy: Tensor, d_log_probs: Tensor, d_entropy: Tensor
) -> Tensor:
    """Return the gradient (n, V) with respect to logits / T."""
    # −p (g + h (log p + H)), built in one buffer.
    gradient = (
        torch.addcmul((d_log_probs + d_entropy * entropy)[:, None], log_p, d_entropy[:, None])
        .mul_(log_p.exp())
        .neg_()
    )
    return gradient.scatter_add_(-1, targets[:, None], d_log_probs[:, None])


def _log_softmax(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Return log p, (n, V), at least in float32."""
    logits = linear(states, weight, bias)
    return torch.log_softmax(logits.to(_wide(logits.dtype)).div_(temperature), dim=-1)


def _cast(dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Cast the head to the type its product is computed in."""
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _parts(total: int, rows: int) -> list[slice]:
    return [slice(first, first + rows) for first in range(0, total, rows)]
