"""Curricula: which starts of the seed stream are collected next, by difficulty and success so far.

A curriculum that chooses is offered more seeds than are wanted, the next ones of the run's seed
stream, and their difficulties, which the environment names without playing. Seeds that are not
chosen are not offered again; ``LevelReplay`` plays some of those that were chosen again.
Demonstrations and evaluation sets have seeds of their own.
"""

from ragen_pl.rollout.curriculum.base import UNKNOWN, Curriculum, Uniform
from ragen_pl.rollout.curriculum.by_difficulty import (
    ByDifficulty,
    LearningProgress,
    TargetSuccess,
)
from ragen_pl.rollout.curriculum.choice import choose_starts, restored_progress, saved_progress
from ragen_pl.rollout.curriculum.level_replay import LevelReplay

__all__ = [
    "UNKNOWN",
    "ByDifficulty",
    "Curriculum",
    "LearningProgress",
    "LevelReplay",
    "TargetSuccess",
    "Uniform",
    "choose_starts",
    "restored_progress",
    "saved_progress",
]
