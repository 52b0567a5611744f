"""From seeds to tensors: episodes, prompts, rewards, demonstrations, packing; engines that sample.

May not know the trainer or take a gradient: a rollout needs a function that generates tokens.
"""

from ragen_pl.rollout.chat import Chat, Prompts
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart, demonstrate
from ragen_pl.rollout.engines import VLLM, Engine, InProcess
from ragen_pl.rollout.packing import micro_batches, pack
from ragen_pl.rollout.rewards import Overlong

__all__ = [
    "VLLM",
    "Chat",
    "Engine",
    "GroupSeed",
    "InProcess",
    "Overlong",
    "Prompts",
    "RolloutConfig",
    "WarmStart",
    "collect",
    "demonstrate",
    "micro_batches",
    "pack",
]
