"""What an update changed, from log-probs of sampled tokens under two policies."""

from __future__ import annotations

import torch
from torch import Tensor


def trajectory_log_weights(
    log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, trajectory_ids: Tensor
) -> Tensor:
    """Sum log π − log π_old over the sampled tokens of each trajectory.

    Args:
        log_probs: (B, T).
        old_log_probs: (B, T).
        mask: (B, T) bool, sampled tokens.
        trajectory_ids: (B,) int: equal for all rows of a trajectory.

    Returns:
        (n,) float64 for the n trajectories with a sampled token, in the order of their ids.
    """
    change = torch.where(mask, log_probs - old_log_probs, torch.zeros_like(log_probs))
    own = mask.any(1)
    ids, of_row = torch.unique(trajectory_ids[own], return_inverse=True)
    # Apple's GPU has no float64.
    sums = change[own].cpu().double().sum(1)
    return torch.zeros(len(ids), dtype=torch.float64).index_add(0, of_row.cpu(), sums)


def effective_share(log_weights: Tensor) -> float:
    """Return the effective sample size of importance weights as a share of their number.

    (Σw)² / (n Σw²), from 1 / n, where one weight is all, to 1, where all are equal (Kish 1965).

    Args:
        log_weights: (n,) float64, log w; a common summand has no effect.
    """
    if not log_weights.numel():
        return float("nan")
    total = 2 * torch.logsumexp(log_weights, 0) - torch.logsumexp(2 * log_weights, 0)
    return float(total.exp()) / log_weights.numel()
