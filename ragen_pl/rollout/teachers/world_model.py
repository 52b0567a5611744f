"""``WorldModel``, transitions in words: what the agent will see after its actions, imitated before
RL (SPA, arXiv 2510.15047)."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from ragen_pl.envs.base import TextEnv, one_of
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.rollout.actors import Actor, Move, NoisyExpertActor, RandomActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.rollout.responses import SEPARATOR
from ragen_pl.rollout.teachers.base import (
    Lesson,
    LessonQuestion,
    Lessons,
    Teacher,
    TeachingTask,
    check_share,
)
from ragen_pl.rollout.teachers.played import play_lessons
from ragen_pl.rollout.token_texts import token_texts
from ragen_pl.types import Trajectory, Turn

Play = Literal["random", "expert"]
LEADS_TO = " leads to:\n"
"""What stands between the actions and the prediction."""
ENDED = "the end"
"""Prediction of actions that end the episode, after which the agent sees nothing."""


@dataclass(frozen=True)
class WorldModel(Teacher):
    """Play in which every thought names the turn's actions and what the agent will see after them.

    A response is ``<think>Left || Up leads to:`` and the next observation, then the answer with the
    same actions, in the agent's own chat protocol; actions that end the episode lead to
    ``the end``. The prediction is what a copy of the environment shows after the actions, so it
    is true as far as observations follow from the state: in a noisy environment it is one of the
    things that may follow, and the copy's noise is the episode's.

    Args:
        play: Who plays: ``random`` actions, or the environment's ``expert``.
        random_turns: Share of the expert's turns whose actions are random.
        imitate_actions: Whether the choice of the actions is imitated, too: random play teaches no
            preference, an expert's does. false trains the prediction and the answer's format alone,
            after which the policy has to be taught, or to find, how a thought begins.
        held_out: Episodes, from initial states of their own, on whose transitions the predictions
            are tested before each iteration of the warm start and after the last.
    """

    play: Play = "random"
    random_turns: float = 0.3
    imitate_actions: bool = True
    held_out: int = 32

    def __post_init__(self) -> None:
        one_of("warm_start.teacher.play", self.play, Play)
        check_share("teacher.random_turns", self.random_turns)
        check_held_out(self.held_out)

    @property
    def _player(self) -> Actor:
        return RandomActor() if self.play == "random" else NoisyExpertActor(self.random_turns)

    def check(self, env: TextEnv, *, think: bool) -> None:
        name = type(env).__name__
        check_thinks(type(self).__name__, think=think)
        if not self._player.can_play(env):
            remedy = (
                "which random play cannot find: set warm_start.teacher.play to expert"
                if env.actions is None and self.play == "random"
                else "which cannot play: set warm_start.teacher.play to random"
            )
            lacks = "free-text actions" if self.play == "random" else "no expert_turn"
            raise ValueError(f"{name} has {lacks}, {remedy}")

    def vocabulary(self) -> Iterable[str]:
        return LEADS_TO, ENDED

    def teach(self, task: TeachingTask) -> Lessons:
        lessons = play_lessons(task, self._play_lesson, remedy=_REMEDY)
        told = f"predictions of what follows from {self.play} play" + (
            ", actions imitated too" if self.imitate_actions else ", actions without loss"
        )
        return Lessons(lessons, told, self._questions(task) if self.held_out else ())

    def _play_lesson(self, episode: ChatEpisode, rng: random.Random) -> Lesson | None:
        trajectory = self._played(episode, rng)
        if not trajectory.is_trainable:
            return None
        turns, chat = trajectory.turns, episode.chat
        given = [0 if self.imitate_actions else announced_tokens(turn, chat) for turn in turns]
        return Lesson.of(trajectory, [True] * len(turns), given)

    def _played(self, episode: ChatEpisode, rng: random.Random) -> Trajectory:
        """Play an episode to its end."""
        player = self._player
        while episode.begin_turn():
            with episode.env_errors():
                move = player.act(episode.env, rng, episode.max_actions)
                announced = announcement(move.actions)
                seen = predicted(episode.env, move.actions, episode.actions_left)
                episode.take(Move(move.actions, f"{announced}{seen}"))
        return episode.trajectory()

    def _questions(self, task: TeachingTask) -> tuple[LessonQuestion, ...]:
        """Return the transitions of episodes that are not imitated, as questions."""
        questions: list[LessonQuestion] = []

        def play(episode: ChatEpisode, rng: random.Random) -> Lesson | None:
            trajectory = self._played(episode, rng)
            if not trajectory.is_trainable:
                return None
            foretold = [True] * len(trajectory.turns)
            questions.extend(transition_questions(trajectory, foretold, episode.chat))
            return Lesson.of(trajectory, foretold)

        first = task.first_seed + _FIRST_HELD_OUT
        play_lessons(replace(task, demonstrations=self.held_out, first_seed=first), play)
        return tuple(questions)


_REMEDY = "mend the environment, or give predictions room (rollout.max_response_tokens)"
_FIRST_HELD_OUT = 2_050_000_000
"""Offset of the seeds of held-out episodes: behind those of the most demonstrations there may be,
before those of evaluation sets."""


def check_held_out(count: int) -> None:
    """Refuse a negative number of held-out episodes or initial states.

    Raises:
        ValueError: with the key and the number.
    """
    if count < 0:
        raise ValueError(f"warm_start.teacher.held_out is {count}; it must be 0 (no test) or more")


def check_thinks(teacher: str, *, think: bool) -> None:
    """Refuse a protocol without thoughts.

    Raises:
        ValueError: if the agent does not think before it answers.
    """
    if not think:
        raise ValueError(
            f"{teacher} writes predictions as thoughts, but prompts.think is false: set it to true"
        )


def announcement(actions: Sequence[str]) -> str:
    """Return the beginning of a thought, which names the actions."""
    return f" {SEPARATOR} ".join(actions) + LEADS_TO


def predicted(env: CheckedEnv, actions: Sequence[str], actions_left: int) -> str:
    """Return what the agent will see after some actions, by playing them in a copy.

    Args:
        env: The environment.
        actions: The actions.
        actions_left: Actions after which the episode ends in any case.

    Raises:
        EnvError: if the environment breaks its contract.
    """
    ahead = CheckedEnv(copy.deepcopy(env.env))
    text = ""
    for number, action in enumerate(actions, start=1):
        outcome = ahead.step(action)
        if outcome.terminated or outcome.truncated or number == actions_left:
            return ENDED
        text = outcome.observation
    return text


def transition_questions(
    trajectory: Trajectory, foretold: Sequence[bool], chat: Chat
) -> Iterator[LessonQuestion]:
    """Yield transitions as questions: a context up to the announcement of the actions, and the rest
    of the thought.

    Args:
        trajectory: An episode.
        foretold: Whether each turn's thought is a prediction.
        chat: The agent's chat protocol.
    """
    for number, turn in enumerate(trajectory.turns):
        if foretold[number]:
            start, ids = announced_tokens(turn, chat), turn.completion.token_ids
            prefix, answer = trajectory.prefix_ids(number), ids[start : turn.thought_tokens]
            if answer:  # else the tokenizer joined it with the tag behind it
                yield LessonQuestion((*prefix, *ids[:start]), answer)


def announced_tokens(turn: Turn, chat: Chat) -> int:
    """Return the number of a response's first tokens with a part of the announcement."""
    # Not by the turn's actions, which are those that were executed before the episode ended.
    announced = turn.response.index(LEADS_TO) + len(LEADS_TO)
    ends = accumulate(map(len, token_texts(turn.completion, turn.response, chat)))
    return next(number for number, end in enumerate(ends, start=1) if end >= announced)
