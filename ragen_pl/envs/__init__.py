"""Text environments; each imports neither torch nor transformers."""

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.sokoban.env import Sokoban

__all__ = ["Bandit", "FrozenLake", "Sokoban"]
