"""Trial episodes: an environment, a player, and what they did."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract.differences import difference

ChooseActions = Callable[[CheckedEnv, random.Random], tuple[str, ...]]
"""Function that chooses the next actions, at least one.

Raises:
    EnvError: if the environment breaks its contract.
"""
PLAIN_TEXTS = ("1", "yes", "an answer", "[1]", "a b", "{}", "0", "<answer>2</answer>")
"""Free-text actions of a player that knows nothing."""
LONGEST = 1000
"""Maximum actions of a trial, however many ``max_actions`` allows."""
_SAMPLE_SHARE = 0.5
"""Share of samples, where an environment has some, in random play of free text."""
ACTIONS_PER_TURN = 2
"""Actions that an expert may return at once."""


def play_at_random(env: CheckedEnv, rng: random.Random) -> tuple[str, ...]:
    """Choose one action; of free text, one of the environment's samples as often as one of a few
    texts that mean nothing."""
    if env.actions is not None:
        return (rng.choice(env.actions),)
    samples = env.sample_actions()
    return (rng.choice(samples if samples and rng.random() < _SAMPLE_SHARE else PLAIN_TEXTS),)


def play_as_expert(env: CheckedEnv, rng: random.Random) -> tuple[str, ...]:
    """Let the environment's expert choose, or chance in a task without one."""
    try:
        return env.expert_turn(rng, ACTIONS_PER_TURN)[1]
    except EnvError as error:
        if not error.is_for_want_of_an_expert:
            raise
        return play_at_random(env, rng)


def has_expert_now(env: CheckedEnv) -> bool:
    """Return whether the current task has an expert; one that fails is one."""
    try:
        env.expert_turn(random.Random(0), ACTIONS_PER_TURN)
    except EnvError as error:
        return not error.is_for_want_of_an_expert
    return True


def play_between(expert_share: float) -> ChooseActions:
    """Return a player whose turns are the expert's with a probability, and random otherwise, or
    where the expert fails."""

    def player(env: CheckedEnv, rng: random.Random) -> tuple[str, ...]:
        if rng.random() < expert_share:
            try:
                return play_as_expert(env, rng)
            except EnvError:  # told by the check of the expert
                pass
        return play_at_random(env, rng)

    return player


@dataclass(frozen=True, slots=True)
class Step:
    """One action and what came of it."""

    action: str
    observation: str
    reward: float
    has_ended: bool
    success: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One episode."""

    seed: int
    observation: str
    """The first one."""
    difficulty: str
    optimal_length: int | None
    steps: tuple[Step, ...]

    @property
    def success(self) -> bool:
        """Whether the last step was a success."""
        return bool(self.steps) and self.steps[-1].success

    @property
    def has_ended(self) -> bool:
        """Whether the environment ended it, before the maximum number of actions."""
        return bool(self.steps) and self.steps[-1].has_ended

    @property
    def total_reward(self) -> float:
        """The sum of all rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def observations(self) -> tuple[str, ...]:
        """All observations, the first one included."""
        return (self.observation, *(step.observation for step in self.steps))


@dataclass(slots=True)
class Timing:
    """How long resets and steps took, in seconds of wall-clock time."""

    reset_s: float = 0.0
    resets: int = 0
    step_s: float = 0.0
    steps: int = 0


def play(
    env: TextEnv,
    seed: int,
    noise_seed: int,
    player: ChooseActions,
    label: str = "",
    timing: Timing | None = None,
) -> Trial:
    """Play one episode, in the given environment itself.

    Args:
        env: The environment, which is reset.
        seed: Seed of the start.
        noise_seed: Seed of what is random later.
        player: The player, whose randomness depends on both seeds and the label alone.
        label: Tells apart players that shall choose otherwise at equal seeds.
        timing: What the time is added to.

    Raises:
        EnvError: if the environment breaks its contract.
    """
    checked = CheckedEnv(env)
    begin = time.perf_counter()
    first = checked.reset(seed, noise_seed)
    was_reset = time.perf_counter()
    steps = go_on(checked, random.Random(f"{seed} {noise_seed} {label}"), player)
    if timing is not None:
        timing.reset_s += was_reset - begin
        timing.resets += 1
        timing.step_s += time.perf_counter() - was_reset
        timing.steps += len(steps)
    return Trial(seed, first.observation, first.difficulty, first.optimal_length, steps)


def go_on(
    env: CheckedEnv, rng: random.Random, player: ChooseActions, most: int | None = None
) -> tuple[Step, ...]:
    """Play on from the current state until the end or a number of actions.

    Args:
        most: Number of actions; None for ``max_actions``, but at most ``LONGEST``.
    """
    steps: list[Step] = []
    limit = min(env.max_actions, LONGEST) if most is None else most
    while len(steps) < limit:
        for action in player(env, rng)[: limit - len(steps)]:
            step = take(env, action)
            steps.append(step)
            if step.has_ended:
                return tuple(steps)
    return tuple(steps)


def take(env: CheckedEnv, action: str) -> Step:
    """Take one step."""
    outcome = env.step(action)
    ended = outcome.terminated or outcome.truncated
    return Step(action, outcome.observation, outcome.reward, ended, outcome.success)


def follow(env: CheckedEnv, steps: tuple[Step, ...]) -> str:
    """Take the same steps in another environment and describe the first difference; empty if there
    is none."""
    for number, wanted in enumerate(steps, start=1):
        try:
            given = take(env, wanted.action)
        except EnvError as error:
            return f"step {number} after it, {wanted.action!r:.40}: {error}"
        if given != wanted:
            return (
                f"step {number} after it, {wanted.action!r:.40}, has another "
                f"{differing(given, wanted)} in the original"
            )
    return ""


def differing(given: Step, wanted: Step) -> str:
    """Describe the first difference of two steps, by its name."""
    for name in ("reward", "has_ended", "success", "observation"):
        if found := difference(getattr(given, name), getattr(wanted, name), name):
            return found
    return "action"
