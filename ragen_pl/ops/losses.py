"""Compute losses per token: pure functions of (B, T) tensors. Summing them is the caller's."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = 3.0,
) -> Tensor:
    """Return the clipped surrogate per token: −min(ρA, clip(ρ, 1−ε_low, 1+ε_high) A).

    RAGEN eq. 4 with DAPO's separate bounds ("clip-higher", 2503.14476 §3.1) and the dual clip
    (1912.09729) that bounds the loss of a bad token whose ratio exploded.
    """
    ratio = torch.exp((log_probs - old_log_probs).clamp(-20.0, 20.0))
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss


def sequence_log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Average log ρ over each trajectory's sampled tokens; (B, 1).

    The logarithm of GSPO's length-normalised sequence ratio (2507.18071, eq. 7). Rows without
    sampled tokens give 0.
    """
    log_ratio = torch.where(mask, log_probs - old_log_probs, torch.zeros_like(log_probs))
    return log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def sequence_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Clip the surrogate by the ratio of the whole trajectory: GSPO (2507.18071).

    Every token carries its trajectory's ratio s, as s · π/sg(π) (eq. 14 there, "GSPO-token"), so
    that advantages may differ from token to token. Where they do not, the mean over a trajectory's
    tokens has the value and the gradient of min(s A, clip(s) A), eq. 5.

    Args:
        log_probs: (B, T); gradients flow through these.
        old_log_probs: (B, T).
        advantages: (B, T).
        mask: (B, T) bool, sampled tokens; the length counts these only.

    Returns:
        (B, T).
    """
    whole = sequence_log_ratio(log_probs, old_log_probs, mask).detach()
    log_ratio = whole + log_probs - log_probs.detach()
    return clipped_policy_loss(
        log_ratio,
        torch.zeros_like(log_ratio),
        advantages,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=None,
    )


def clipped_weight_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Weigh REINFORCE by a clipped ratio: −sg(clip(ρ, 1−ε_low, 1+ε_high)) A log π per token.

    CISPO (2506.13585, eq. 4-5): clipping bounds a token's weight but never takes its gradient away.
    """
    ratio = torch.exp((log_probs - old_log_probs).clamp(-20.0, 20.0)).detach()
    return -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages * log_probs


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None
) -> Tensor:
    """Return ½ max((V − R)², (V_clipped − R)²) per token, V_clipped within ``clip`` of the old."""
    loss = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


def in_full(tensor: Tensor) -> Tensor:
    """Return a tensor of at least float32's precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def log_prob_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of p, in nats, for logits (n, V) and targets (n,).

    In float32, or in float64 where the logits are.
    """
    log_p = torch.log_softmax(in_full(logits), dim=-1)
    chosen = log_p.gather(-1, targets[:, None])[:, 0]
    return chosen, -(log_p.exp() * log_p).sum(-1)
