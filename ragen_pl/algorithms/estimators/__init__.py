"""Advantage estimators: one class each, whose constructor's arguments are its config keys.

An estimator has only the keys that it uses: a discount if it discounts, a critic's settings if it
has a critic, a scale of rewards if its result depends on the scale.
"""

from ragen_pl.algorithms.estimators.base import AdvantageEstimator, CriticConfig
from ragen_pl.algorithms.estimators.group import (
    GRPO,
    RLOO,
    DrGRPO,
    GiGPO,
    ReinforcePlusPlusBaseline,
)
from ragen_pl.algorithms.estimators.trajectory import GAE, BiLevelGAE, ReinforcePlusPlus, Success

__all__ = [
    "GAE",
    "GRPO",
    "RLOO",
    "AdvantageEstimator",
    "BiLevelGAE",
    "CriticConfig",
    "DrGRPO",
    "GiGPO",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "Success",
]
