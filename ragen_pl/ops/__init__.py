"""Pure functions of tensors: advantages, losses, selection of groups, diagnostics, Echo Trap alarm.

May not import models, environments, collectives or configuration: sums over ranks are taken by a
function that the caller passes in.
"""

from ragen_pl.ops.advantages import bi_level_gae, gae, reward_to_go, thought_advantages
from ragen_pl.ops.group_advantages import grpo, rloo, step_advantages
from ragen_pl.ops.losses import (
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    kl_estimate,
    truncated_importance_weights,
)
from ragen_pl.ops.masked import explained_variance, masked_mean, masked_sum, whiten
from ragen_pl.ops.mutual_information import estimate_information
from ragen_pl.ops.selection import group_std, has_signal, max_variance_subset, top_fraction

__all__ = [
    "aggregate",
    "bi_level_gae",
    "clipped_policy_loss",
    "clipped_value_loss",
    "estimate_information",
    "explained_variance",
    "gae",
    "group_std",
    "grpo",
    "has_signal",
    "kl_estimate",
    "masked_mean",
    "masked_sum",
    "max_variance_subset",
    "reward_to_go",
    "rloo",
    "step_advantages",
    "thought_advantages",
    "top_fraction",
    "truncated_importance_weights",
    "whiten",
]
