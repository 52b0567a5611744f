"""``Solver``, the environment's own expert as the teacher."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.actors import NoisyExpertActor
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.teachers.base import Lesson, Lessons, Teacher, TeachingTask, check_share
from ragen_pl.rollout.teachers.played import play_lessons
from ragen_pl.types import StopReason

_FEW = 0.1
"""Share of demonstrations that succeed at least, or a warning is printed; less where it moves at
random. An expert may leave half of them to learning, as the bandit's does."""
_MANY = 0.1
"""Share of demonstrations that the turns cut off from which on it is told."""


@dataclass(frozen=True)
class Solver(Teacher):
    """The environment's expert, ``TextEnv.expert_turn``, in the agent's chat protocol.

    Args:
        random_turns: Share of the turns whose actions are random, while the thought stays the
            expert's, so that states off the expert's path are visited.
        imitate_random: Whether the random turns carry loss, too. The policy then imitates a noisy
            expert and ends the warm start weaker than it could be, which RL can recover.
    """

    random_turns: float = 0.3
    imitate_random: bool = False

    def __post_init__(self) -> None:
        check_share("teacher.random_turns", self.random_turns)

    def check(self, env: TextEnv, *, think: bool) -> None:
        if not env.has_expert:
            raise ValueError(
                f"{type(env).__name__} has no expert_turn to imitate: write one, choose another "
                "teacher (docs/teachers.md)"
            )

    def teach(self, task: TeachingTask) -> Lessons:
        expert, solved, ends = NoisyExpertActor(self.random_turns), 0, Counter[StopReason]()

        def play(episode: ChatEpisode, rng: random.Random) -> Lesson | None:
            nonlocal solved
            moves = play_episode(episode, expert, rng)
            trajectory = episode.trajectory()
            if not trajectory.is_trainable:
                return None
            solved += trajectory.success
            ends[trajectory.stop_reason] += 1
            imitated = [self.imitate_random or not move.is_random for move in moves]
            return Lesson.of(trajectory, imitated)

        noise = "imitated too" if self.imitate_random else "without loss"
        told = f"{self.random_turns:.0%} of turns move at random, {noise}"
        lessons = play_lessons(task, play)
        played, cut_off = len(lessons), ends[StopReason.MAX_TURNS]
        if cut_off >= _MANY * played:
            told += f"; {cut_off} of {played} end unfinished at rollout.max_turns"
        if solved < _FEW * (1 - self.random_turns) * played:
            told += (
                f"\n  warning: {solved} of {played} of them succeed: the policy learns to fail; "
                + (
                    f"the environment ended {ends[StopReason.TERMINATED]} itself: let step set "
                    'info["success"] where the task is solved, or mend expert_turn'
                    if ends[StopReason.TERMINATED] > solved
                    else "mend expert_turn, or give more turns and actions"
                )
            )
        return Lessons(lessons, told)
