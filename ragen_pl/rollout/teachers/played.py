"""Lessons that are played in the environment, an initial state for each."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from ragen_pl.errors import ConfigError
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.rollout.teachers.base import Lesson, TeachingTask
from ragen_pl.types import EpisodeId, StopReason

_NAMED = 12
"""Difficulties that an error lists."""
_REMEDY = "mend the environment or its expert"
PlayLesson = Callable[[ChatEpisode, random.Random], Lesson | None]
"""Function that plays an episode to its end and returns what of it is imitated; None if the
environment failed or nothing came of it."""


def play_lessons(
    task: TeachingTask, play: PlayLesson, patience: int = 20, remedy: str = _REMEDY
) -> tuple[Lesson, ...]:
    """Play the wanted number of lessons.

    Seeds are taken from the task's first one on; those of other difficulties, and those at which
    the environment or the player fails, are replaced by the next.

    Args:
        task: What is wanted.
        play: The player.
        patience: Lessons that may fail in a row.
        remedy: What to do if more do.

    Raises:
        ConfigError: if too many fail in a row, if none of the wanted difficulties turns up, or if a
            response is too long.
    """
    lessons: list[Lesson] = []
    skipped = failed = failed_in_a_row = 0
    met = set[str]()
    while len(lessons) < task.demonstrations:
        seed = task.first_seed + len(lessons) + skipped + failed
        episode_id = EpisodeId(-1, len(lessons), 0)
        env = copy.deepcopy(task.env)
        episode = ChatEpisode(env, task.chat, task.rollout, seed=seed, episode_id=episode_id)
        has_started = episode.stop_reason is None
        if has_started and task.difficulties and episode.difficulty not in task.difficulties:
            skipped += 1
            met.add(episode.difficulty)
            if skipped > 100 * (len(lessons) + 10):
                named = ", ".join(map(repr, sorted(met - {""})[:_NAMED]))
                others = (
                    f"keeps giving others: {named}"
                    if named
                    else "names no difficulty: set it to []"
                )
                raise ConfigError(
                    f"warm_start.difficulties is {list(task.difficulties)}, but {env.name} {others}"
                )
            continue
        lesson = play(episode, random.Random(seed))
        if lesson is not None:
            failed_in_a_row = 0
            lessons.append(lesson)
            continue
        failed += 1
        failed_in_a_row += 1
        if failed_in_a_row == patience:
            raise _too_many_failures(episode, patience, remedy)
    return tuple(lessons)


def _too_many_failures(last: ChatEpisode, patience: int, remedy: str) -> ConfigError:
    """Return the error after too many failures in a row; it names the last one."""
    if last.error and last.stop_reason is StopReason.CONTEXT_FULL:
        return ConfigError(last.error)  # a key of the configuration is wrong
    reason = last.error or "the teacher found nothing in it to imitate"
    return ConfigError(
        f"{patience} demonstrations in {last.env.name} failed in a row\n"
        f"  last (seed {last.seed}): {reason}\n"
        f"  {remedy}, or set warm_start.iterations to 0"
    )
