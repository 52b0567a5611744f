"""List every estimator, policy loss and aggregation there is, and what is known of each.

``test_estimators`` and ``test_policy_losses`` fail when a class is not in these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ragen_pl.algorithms.estimators import (
    GAE,
    GRPO,
    RLOO,
    AdvantageEstimator,
    BiLevelGAE,
    DrGRPO,
    GiGPO,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Success,
)
from ragen_pl.algorithms.policy_losses import (
    CISPO,
    GSPO,
    SAPO,
    Clip,
    ClipCov,
    KLCov,
    LogLikelihood,
    PolicyLoss,
)
from ragen_pl.ops.losses import Aggregation
from tests.support import plain_estimators as plain


@dataclass(frozen=True)
class Facts:
    """Say how an estimator is configured and what follows from its definition."""

    estimator: AdvantageEstimator
    plain: plain.Plain
    undiscounted: AdvantageEstimator
    """Of the same kind, and blind to a shift of all returns (and of a critic that knows of it)."""
    degree: int
    """Power of the scale of rewards (and values) in the advantages."""
    compares: bool
    """Whether members that are alone, or earned the same, get exactly 0."""
    whole: bool = False
    """Whether rewards are credited at the last token."""


ESTIMATORS = {
    "GAE": Facts(
        GAE(gamma=0.9, gae_lambda=0.8, reward_scale=0.5),
        plain.whitened(plain.with_critic(0.9, 0.8, 0.5)),
        GAE(gae_lambda=0.8, reward_scale=1.0),
        degree=0,
        compares=False,
    ),
    "GAE of the whole": Facts(
        GAE(gamma=0.9, gae_lambda=0.8, reward_scale=0.5, reward_at="trajectory"),
        plain.whitened(plain.with_critic(0.9, 0.8, 0.5)),
        GAE(gae_lambda=0.8, reward_scale=1.0, reward_at="trajectory"),
        degree=0,
        compares=False,
        whole=True,
    ),
    "BiLevelGAE": Facts(
        BiLevelGAE(gamma=0.9, gae_lambda=0.8, turn_gamma=0.7, reward_scale=0.5),
        plain.whitened(plain.with_critic_of_turns(0.9, 0.8, 0.7, 0.5)),
        BiLevelGAE(gae_lambda=0.8, turn_gamma=1.0, reward_scale=1.0),
        degree=0,
        compares=False,
    ),
    "BiLevelGAE of the whole": Facts(
        BiLevelGAE(0.9, 0.8, "trajectory", 0.5, turn_gamma=0.7),
        plain.whitened(plain.with_critic_of_turns(0.9, 0.8, 0.7, 0.5)),
        BiLevelGAE(1.0, 0.8, "trajectory", 1.0, turn_gamma=1.0),
        degree=0,
        compares=False,
        whole=True,
    ),
    "ReinforcePlusPlus": Facts(
        ReinforcePlusPlus(gamma=0.9, reward_at="turn"),
        plain.whitened(plain.to_go(0.9)),
        ReinforcePlusPlus(reward_at="turn"),
        degree=0,
        compares=False,
    ),
    "ReinforcePlusPlus of the whole": Facts(
        ReinforcePlusPlus(gamma=0.9),
        plain.whitened(plain.to_go(0.9)),
        ReinforcePlusPlus(),
        degree=0,
        compares=False,
        whole=True,
    ),
    "ReinforcePlusPlusBaseline": Facts(
        ReinforcePlusPlusBaseline(),
        plain.whitened(plain.group_relative(divide=False)),
        ReinforcePlusPlusBaseline(),
        degree=0,
        compares=False,
    ),
    "GRPO": Facts(GRPO(), plain.group_relative(divide=True), GRPO(), degree=0, compares=True),
    "DrGRPO": Facts(
        DrGRPO(0.5), plain.group_relative(divide=False, scale=0.5), DrGRPO(), 1, compares=True
    ),
    "RLOO": Facts(RLOO(0.5), plain.leave_one_out(0.5), RLOO(), degree=1, compares=True),
    "GiGPO": Facts(
        GiGPO(turn_gamma=0.7, step_weight=0.6),
        plain.group_in_group(0.7, 0.6, divide=True),
        GiGPO(turn_gamma=1.0),
        degree=0,
        compares=True,
    ),
    "GiGPO undivided": Facts(
        GiGPO(turn_gamma=0.7, step_weight=0.6, divide_by_std=False),
        plain.group_in_group(0.7, 0.6, divide=False),
        GiGPO(turn_gamma=1.0, divide_by_std=False),
        degree=1,
        compares=True,
    ),
    "Success": Facts(Success(), plain.successes_alike, Success(), degree=0, compares=False),
}

LOSSES: dict[str, PolicyLoss] = {
    "Clip": Clip(),
    "Clip without dual clip": Clip(0.1, 0.4, dual_clip=None),
    "GSPO": GSPO(0.05, 0.08),
    "CISPO": CISPO(0.5, 0.3),
    "SAPO": SAPO(1.5, 2.0),
    "ClipCov": ClipCov(0.2, -1.0, 3.0, 0.3, 0.4),
    "KLCov": KLCov(0.2, 0.7),
    "LogLikelihood": LogLikelihood(),
}

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
