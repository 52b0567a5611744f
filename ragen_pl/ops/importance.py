"""Correct for a sampler that is not quite the policy: pure functions of (B, T) tensors."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = 20.0
"""Of a log-ratio: its exponential is still finite, and its square too."""


def importance_ratio(log_probs: Tensor, sampled_log_probs: Tensor) -> Tensor:
    """Return π/μ per token: the policy's probability over the sampler's.

    Args:
        log_probs: (B, T), log π of the sampled tokens.
        sampled_log_probs: (B, T), log μ of the same.

    Returns:
        (B, T), positive and finite.
    """
    return torch.exp((log_probs - sampled_log_probs).clamp(-_LARGEST, _LARGEST))


def truncated_importance_weights(
    log_probs: Tensor, sampled_log_probs: Tensor, cap: float
) -> Tensor:
    """Return min(π/μ, cap) per token, by which a loss over μ's tokens becomes nearly one over π's.

    Truncated importance sampling (Ionides 2008), as "Your efficient RL framework secretly brings
    you off-policy RL training" (Yao et al., 2025) puts it before PPO's loss: π is the trainer's
    policy that collected, μ what an inference engine made of it. Without the cap the expectation
    would be exact and its variance unbounded.

    Args:
        log_probs: (B, T), the trainer's log-probs of the sampled tokens when they were collected.
        sampled_log_probs: (B, T), the sampler's.
        cap: At least 1, so that tokens on which the two agree weigh 1.
    """
    assert cap >= 1.0
    return importance_ratio(log_probs, sampled_log_probs).clamp(max=cap)
