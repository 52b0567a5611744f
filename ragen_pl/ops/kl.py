"""Estimate a KL divergence from sampled tokens."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]
"""The estimators of Schulman's note on approximating KL divergence."""
_LARGEST_LOG_RATIO = 20.0
_LARGEST_K3 = 10.0
"""Bounds of k3 per token, where it is a loss and where it is taken off rewards: those of verl
(``kl_penalty`` in ``verl/trainer/ppo/core_algos.py``)."""


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate KL(policy ‖ reference) per token from tokens that the policy sampled.

    With d = log policy − log reference:

    - k1 = d is unbiased, of high variance and either sign. As a loss its gradient is ∇log policy,
      which is 0 in expectation: it adds noise and pulls nowhere. It belongs in the reward.
    - k2 = d²/2 is biased and never negative. As a loss its gradient is d ∇log policy, in
      expectation exactly the gradient of KL(policy ‖ reference).
    - k3 = exp(−d) + d − 1 is unbiased and never negative. As a loss its gradient is
      (1 − exp(−d)) ∇log policy, in expectation the gradient of the *other* divergence,
      KL(reference ‖ policy); the two agree to first order near the reference. It grows
      exponentially in a token that the policy has given up, so d is clamped to ±20 and k3 to 10,
      which it reaches at d = −2.6 and d = 11: beyond, such a token counts 10 and pulls nowhere.

    Args:
        log_probs: (B, T).
        ref_log_probs: (B, T).

        estimator: One of the above.

    Returns:
        (B, T).

    Raises:
        ValueError: for another estimator.
    """
    if estimator == "k1":
        return log_probs - ref_log_probs
    if estimator == "k2":
        return 0.5 * (log_probs - ref_log_probs).square()
    check_estimator(estimator)
    difference = (ref_log_probs - log_probs).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return (torch.exp(difference) - difference - 1.0).clamp(max=_LARGEST_K3)


def check_estimator(name: str) -> None:
    """Refuse the name of no estimator.

    Raises:
        ValueError: naming those that there are.
    """
    known = get_args(KLEstimator)
    if name not in known:
        raise ValueError(f"kl.estimator is {name!r}; it must be one of {', '.join(known)}")
