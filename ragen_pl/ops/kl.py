"""Estimate a KL divergence from sampled tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]
"""The estimators of Schulman's note on approximating KL divergence."""


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate KL(policy ‖ reference) per token from tokens that the policy sampled.

    With d = log policy − log reference, clamped to ±20 where it is exponentiated:

    - k1 = d is unbiased, of high variance and either sign. As a loss its gradient is ∇log policy,
      which is 0 in expectation: it adds noise and pulls nowhere. It belongs in the reward.
    - k2 = d²/2 is biased and never negative. As a loss its gradient is d ∇log policy, in
      expectation exactly the gradient of KL(policy ‖ reference).
    - k3 = exp(−d) + d − 1 is unbiased and never negative. As a loss its gradient is
      (1 − exp(−d)) ∇log policy, in expectation the gradient of the *other* divergence,
      KL(reference ‖ policy); the two agree to first order near the reference.

    Args:
        log_probs: (B, T).
        ref_log_probs: (B, T).

    Returns:
        (B, T).
    """
    if estimator == "k1":
        return log_probs - ref_log_probs
    if estimator == "k2":
        return 0.5 * (log_probs - ref_log_probs).square()
    difference = (ref_log_probs - log_probs).clamp(-20.0, 20.0)
    return torch.exp(difference) - difference - 1.0
