"""Teachers of the warm start: one class each, whose constructor's arguments are its config keys.

A teacher writes demonstrations as tokens in the agent's own chat protocol; how many steps are taken
on them is the warm start's business.
"""

from ragen_pl.rollout.teachers.base import (
    Lesson,
    LessonQuestion,
    Lessons,
    Teacher,
    TeachingTask,
    tell_nobody,
)
from ragen_pl.rollout.teachers.explorer import Explorer
from ragen_pl.rollout.teachers.offline import Offline
from ragen_pl.rollout.teachers.recorded_world_model import RecordedWorldModel
from ragen_pl.rollout.teachers.solver import Solver
from ragen_pl.rollout.teachers.world_model import WorldModel

__all__ = [
    "Explorer",
    "Lesson",
    "LessonQuestion",
    "Lessons",
    "Offline",
    "RecordedWorldModel",
    "Solver",
    "Teacher",
    "TeachingTask",
    "WorldModel",
    "tell_nobody",
]
