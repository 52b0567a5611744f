"""Adapters: environments of other packages as ``TextEnv``, a class each.

The extras ``envs``, ``alfworld`` and ``scienceworld`` install the packages; they are imported when
an adapter is made. May not be imported by the rest of the library.
"""

from ragen_pl.envs.adapters.alfworld import AlfWorld
from ragen_pl.envs.adapters.gym_text import GymText
from ragen_pl.envs.adapters.minigrid import MiniGrid
from ragen_pl.envs.adapters.open_env import OpenEnv
from ragen_pl.envs.adapters.open_spiel import OpenSpiel
from ragen_pl.envs.adapters.players import MCTS, Minimax, MonteCarlo, Player, RandomPlay
from ragen_pl.envs.adapters.reasoning_gym import ReasoningGym
from ragen_pl.envs.adapters.science_world import ScienceWorld
from ragen_pl.envs.adapters.skyrl_gym import SkyRLGym
from ragen_pl.envs.replay import ReplayState

__all__ = [
    "MCTS",
    "AlfWorld",
    "GymText",
    "MiniGrid",
    "Minimax",
    "MonteCarlo",
    "OpenEnv",
    "OpenSpiel",
    "Player",
    "RandomPlay",
    "ReasoningGym",
    "ReplayState",
    "ScienceWorld",
    "SkyRLGym",
]
