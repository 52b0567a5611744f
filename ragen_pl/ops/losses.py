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


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None
) -> Tensor:
    """Return ½ max((V − R)², (V_clipped − R)²) per token, V_clipped within ``clip`` of the old."""
    loss = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Estimate KL(policy ‖ reference) per token: exp(d) − d − 1 with d = log ref − log policy.

    The unbiased, non-negative "k3" of Schulman's note on approximating KL divergence.
    """
    difference = (ref_log_probs - log_probs).clamp(-20.0, 20.0)
    return torch.exp(difference) - difference - 1.0


def log_prob_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of p, in nats, for logits (n, V) and targets (n,)."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    chosen = log_p.gather(-1, targets[:, None])[:, 0]
    return chosen, -(log_p.exp() * log_p).sum(-1)
