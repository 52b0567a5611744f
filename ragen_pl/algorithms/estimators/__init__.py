"""Choose how advantages are estimated: one class per kind, its keys the constructor's.

A key stands where it acts: a discount with those who discount, a critic's settings with those who
have a critic, a scale of rewards with those whose result depends on it.
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
