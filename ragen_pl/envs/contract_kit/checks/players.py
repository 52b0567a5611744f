"""Players: the expert succeeds, random play does not always."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import LONGEST, go_on, play_as_expert, play_at_random
from ragen_pl.runtime.findings import Finding, failure, ok, warning

_TOO_EASY = 0.95
_FEWEST = 8
_OFF_PATH, _OFF_PATH_TURNS = 16, 3


def check_expert(subject: ExaminedEnv) -> Iterator[Finding]:
    """Let the expert play: its actions must be legal, and it must succeed now and then."""
    if not subject.has_expert:
        yield ok("it has no expert, which a warm start would need")
        return
    played, without = subject.expert_play, len(subject.without_expert)
    missing = f"no expert for {without} of {without + len(played)} tasks"
    if not played:
        yield ok(f"{missing}; a warm start would need one")
        return
    solved = sum(trial.success for trial in played)
    text = f"the expert solves {solved} of {len(played)} starts"
    text = f"{missing}; of the others, {text}" if without else text
    if not solved:
        most = min(subject.env.max_actions, LONGEST)
        ended = sum(trial.has_ended for trial in played)
        if ended:
            yield failure(
                f'{text}: the environment ended {ended} of them, none with info["success"] true',
                "let step set it where the task is solved, or mend expert_turn",
            )
            return
        yield failure(
            f"{text} within {most} actions: there is nothing to imitate",
            "mend expert_turn, or raise max_actions",
        )
        return
    lost = list(_lost(subject))
    if lost:
        yield warning(
            f"{text}, but raises in {len(lost)} of {_OFF_PATH} episodes with random moves: "
            f"{lost[0]}",
            "let it find a way from any state; a warm start with random_turns leaves such "
            "demonstrations out",
        )
        return
    by_chance = subject.random_play
    lucky = sum(trial.success for trial in by_chance)
    if by_chance and solved + math.sqrt(len(played)) < lucky / len(by_chance) * len(played):
        yield warning(  # by more than luck
            f"{text}, and random play {lucky} of {len(by_chance)}: who imitates it learns to fail",
            "mend expert_turn",
        )
        return
    actions = sum(len(trial.steps) for trial in played) / len(played)
    yield ok(f"{text}, in {actions:.1f} actions on average")


def _lost(subject: ExaminedEnv) -> Iterator[EnvError]:
    """Yield the errors of the expert after random moves."""
    env = CheckedEnv(subject.copy())
    for seed in subject.in_time(range(_OFF_PATH), share=0.5):
        env.reset(seed, 0)
        rng = random.Random(seed)
        for _ in range(_OFF_PATH_TURNS):
            early = go_on(env, rng, play_at_random, most=2)
            if early and early[-1].has_ended:
                break
            try:
                later = go_on(env, rng, play_as_expert, most=1)
            except EnvError as error:
                yield error
                break
            if later and later[-1].has_ended:
                break


def check_random(subject: ExaminedEnv) -> Iterator[Finding]:
    """Let chance play: a task that it solves teaches nothing."""
    played = subject.random_play
    solved = sum(trial.success for trial in played)
    what = "random actions"
    if subject.env.actions is None:
        env = CheckedEnv(subject.copy())
        env.reset(0, 0)
        what = "sample_actions and other texts" if env.sample_actions() else "meaningless texts"
    text = f"{what} solve {solved} of {len(played)} starts"
    if len(played) >= _FEWEST and solved >= _TOO_EASY * len(played):
        yield warning(f"{text}: there is nothing to learn", "make the task harder")
        return
    yield ok(text)
