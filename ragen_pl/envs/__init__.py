"""Environments: ``TextEnv``, its checker, and the shipped environments, a file or a folder each.

May not import torch, transformers or Lightning: an environment runs wherever Python does.
"""

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.math_qa.env import MathQA
from ragen_pl.envs.rubik.env import Rubik
from ragen_pl.envs.search_qa.env import SearchQA
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sudoku.env import Sudoku
from ragen_pl.envs.tools.env import ToolEnv
from ragen_pl.envs.web_shop.env import WebShop

SHIPPED: tuple[type[TextEnv], ...] = (Sokoban, FrozenLake, Bandit, Rubik, Sudoku, SearchQA, WebShop)
"""The shipped environments that need no file of yours."""
COVERED: tuple[type[TextEnv], ...] = (Sokoban, FrozenLake, Bandit)
"""Those of the first paper. Every embedded tokenizer covers their dialogues beside those of the
run's own environments, so that one policy can play all of them."""

__all__ = [
    "COVERED",
    "SHIPPED",
    "Bandit",
    "FrozenLake",
    "MathQA",
    "Rubik",
    "SearchQA",
    "Sokoban",
    "Sudoku",
    "TextEnv",
    "ToolEnv",
    "WebShop",
    "check_contract",
]
