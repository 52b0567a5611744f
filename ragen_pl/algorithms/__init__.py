"""What is optimized: advantages, policy losses, filters, coefficients, and their configuration.

May not run a network or step an environment: an algorithm maps log-probs, values and rewards to
advantages and losses.
"""

from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import (
    Algorithm,
    Control,
    EntropyBonus,
    EntropySmoothing,
    KLPenalty,
    ThoughtAdvantage,
)
from ragen_pl.algorithms.estimators import AdvantageEstimator, CriticConfig
from ragen_pl.algorithms.filters import FilterRule
from ragen_pl.algorithms.optimization import Muon, Optimization
from ragen_pl.algorithms.policy_losses import PolicyLoss

__all__ = [
    "AdvantageEstimator",
    "Algorithm",
    "Coefficients",
    "Control",
    "CriticConfig",
    "EntropyBonus",
    "EntropySmoothing",
    "FilterRule",
    "KLPenalty",
    "Muon",
    "Optimization",
    "PolicyLoss",
    "ThoughtAdvantage",
]
