"""Build the one optimizer and take its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from ragen_pl.algorithm import Optimization
from ragen_pl.distributed import all_reduce_sum
from ragen_pl.sharding import whole


def build_optimizer(parts: Mapping[str, nn.Module], config: Optimization) -> torch.optim.AdamW:
    """Make one AdamW with a group per part of the networks, so that the step count stays one per
    update."""
    groups: list[dict[str, Any]] = [
        {"name": name, "params": [p for p in part.parameters() if p.requires_grad]}
        for name, part in parts.items()
    ]
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


def take_step(
    optimizer: LightningOptimizer, rates: Mapping[str, float], max_grad_norm: float
) -> dict[str, Tensor] | None:
    """Clip each group's gradient by itself, step with the given rates, clear the gradients.

    A critic's large gradient must not throttle the policy, hence one norm per group. A group
    without gradients is left alone.

    Returns:
        The gradient norms before clipping by group; None when one was not finite on any rank, in
        which case no rank steps.
    """
    norms: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        group["lr"] = rates.get(group["name"], 0.0)
        if any(parameter.grad is not None for parameter in group["params"]):
            norm = nn.utils.clip_grad_norm_(group["params"], max_grad_norm)
            norms[group["name"]] = whole(norm)
    bad = not all(math.isfinite(float(norm)) for norm in norms.values())
    anywhere = float(all_reduce_sum(torch.tensor(float(bad)))) > 0
    if not anywhere:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return None if anywhere else norms
