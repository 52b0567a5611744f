"""Rollouts, from seeds to tensors: episodes, actors, prompts, rewards, packing; sampling engines.

May not know the trainer or compute gradients of the policy: a rollout needs a function that
generates tokens. (A small agent that teaches learns inside its own library.)
"""

from ragen_pl.rollout.actors import Actor, ExpertActor, RandomActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.curriculum import ByDifficulty, Curriculum, TargetSuccess, Uniform
from ragen_pl.rollout.demonstrations import WarmStart, demonstrate
from ragen_pl.rollout.engines import VLLM, Engine, InProcess
from ragen_pl.rollout.memory import Compact, Full, Memory, State, Window
from ragen_pl.rollout.micro_batching import micro_batches
from ragen_pl.rollout.packing import pack
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.rewards import Format, Grounding, Overlong, PlayedTurn, RewardTerm, Truth
from ragen_pl.rollout.teachers import Solver, Teacher

__all__ = [
    "VLLM",
    "Actor",
    "ByDifficulty",
    "Chat",
    "Compact",
    "Curriculum",
    "Engine",
    "ExpertActor",
    "Format",
    "Full",
    "Grounding",
    "GroupSeed",
    "InProcess",
    "Memory",
    "Overlong",
    "PlayedTurn",
    "Prompts",
    "RandomActor",
    "RewardTerm",
    "RolloutConfig",
    "Solver",
    "State",
    "TargetSuccess",
    "Teacher",
    "Truth",
    "Uniform",
    "WarmStart",
    "Window",
    "collect",
    "demonstrate",
    "micro_batches",
    "pack",
]
