"""The advantage of tokens by what a teacher thinks of them."""

from __future__ import annotations

import torch
from torch import Tensor


def distillation_advantages(
    teacher_log_probs: Tensor, log_probs: Tensor, mask: Tensor, limit: float
) -> Tensor:
    """Return how much more likely the teacher finds each sampled token than the policy did.

    Of tokens that the policy π itself sampled, the gradient of the reverse KL to a fixed teacher q
    at one token, Σ_y π(y) log(π(y) / q(y)), is E_y[log(π(y) / q(y)) ∇ log π(y)]. So this advantage
    in a policy gradient follows it downhill, and the estimate is unbiased where no token is at the
    limit (on-policy distillation, arXiv 2306.13649; self-distillation, arXiv 2601.20802).

    Args:
        teacher_log_probs: log q(y) of the sampled tokens, (B, T).
        log_probs: log π(y) of the same tokens when they were sampled, (B, T).
        mask: Tokens that the teacher judges, (B, T) bool; the others get 0.
        limit: Largest size of an advantage, in nats: a token that the teacher all but excludes
            would outweigh all others.
    """
    gap = (teacher_log_probs - log_probs).clamp(-limit, limit)
    return torch.where(mask, gap, torch.zeros_like(gap))
