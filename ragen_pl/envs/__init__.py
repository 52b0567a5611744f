"""Environments: ``TextEnv``, its checker, and the shipped environments, a file or a folder each.

May not import torch, transformers or Lightning: an environment runs wherever Python does.
"""

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.check import check_contract
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.sokoban.env import Sokoban

SHIPPED: tuple[type[TextEnv], ...] = (Sokoban, FrozenLake, Bandit)
"""The shipped environments; every embedded tokenizer covers their dialogues, so that one policy can
play all of them."""

__all__ = ["SHIPPED", "Bandit", "FrozenLake", "Sokoban", "TextEnv", "check_contract"]
