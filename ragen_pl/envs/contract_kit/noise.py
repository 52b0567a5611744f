"""Noise: whether what follows equal actions from equal starts depends on the noise seed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract_kit.trial import Step, play, play_at_random, take

_SEEDS, _NOISE_SEEDS = 2, 4


@dataclass(frozen=True, slots=True)
class Noise:
    """What the noise seed decides."""

    matters: bool
    """Whether equal actions from equal starts may lead to different results."""
    repeats: bool = False
    """Whether they no longer do so where the start was restored, although the seeds differ."""


def noise_of(env: CheckedEnv, in_time: Callable[[range], Iterator[int]]) -> Noise:
    """Return what the noise seed decides, as far as a few random episodes tell.

    Args:
        env: An environment to play in.
        in_time: Function that yields the numbers for which there is time.
    """
    for seed in in_time(range(_SEEDS)):
        first = play(env.env, seed, 0, play_at_random).steps
        actions = [step.action for step in first]
        seen = {first}
        for noise_seed in in_time(range(1, _NOISE_SEEDS)):
            env.reset(seed, noise_seed)
            seen.add(repeated(env, actions))
        if len(seen) > 1:
            env.reset(seed, 0)
            start = env.state()
            restored = set[tuple[Step, ...]]()
            for noise_seed in range(_NOISE_SEEDS):
                env.reset(seed, noise_seed)
                env.env.set_state(copy.deepcopy(start))
                restored.add(repeated(env, actions))
            return Noise(matters=True, repeats=len(restored) == 1)
    return Noise(matters=False)


def repeated(env: CheckedEnv, actions: Sequence[str]) -> tuple[Step, ...]:
    """Take actions until one has no name, or the end."""
    taken = list[Step]()
    for action in actions:
        known = env.actions
        if known is not None and action not in known:
            break
        taken.append(take(env, action))
        if taken[-1].has_ended:
            break
    return tuple(taken)
