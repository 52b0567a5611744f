"""Environments: ``TextEnv``, its checker, and those that are shipped, a file or a folder each.

May not import torch, transformers or Lightning: an environment runs wherever Python does.
"""

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.check import check_contract
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.sokoban.env import Sokoban

SHIPPED: tuple[type[TextEnv], ...] = (Sokoban, FrozenLake, Bandit)
"""Environments whose dialogues every embedded tokenizer knows, so that one policy can meet all."""

__all__ = ["SHIPPED", "Bandit", "FrozenLake", "Sokoban", "TextEnv", "check_contract"]
