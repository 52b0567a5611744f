"""What the checks look at: an environment, and episodes that are played in it once."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from functools import cached_property

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.contract_kit.noise import Noise, noise_of
from ragen_pl.envs.contract_kit.trial import (
    ChooseActions,
    Timing,
    Trial,
    has_expert_now,
    play,
    play_as_expert,
    play_at_random,
)

STARTS = 24
"""Starts that expert and random play are tried at."""
_REPEATED = 3
"""Seeds that are reset to twice."""
_PLAY_SHARE = 0.5
"""Share of a check's time for the expert's play, and for random play."""
_NOISE_SHARE = 0.25
"""Share for the search for noise."""
SECONDS = 4.0
"""Time after which a check of a slow environment tries no further start."""


class ExaminedEnv:
    """An environment under examination, which itself is never changed.

    Args:
        env: The environment.
        key: Its name in messages, such as the configuration's key.
        seconds: Time after which a check tries no further start.
    """

    def __init__(self, env: TextEnv, key: str, seconds: float = SECONDS) -> None:
        self.env, self.key, self.seconds = env, key, seconds

    @property
    def name(self) -> str:
        """The name of its class."""
        return type(self.env).__name__

    def copy(self) -> TextEnv:
        """Return a copy to play in."""
        return copy.deepcopy(self.env)

    @cached_property
    def has_expert(self) -> bool:
        """Whether it has an expert."""
        return self.env.has_expert

    @property
    def able_player(self) -> ChooseActions:
        """The expert, or random play without one."""
        return play_as_expert if self.has_expert else play_at_random

    @property
    def random_play(self) -> list[Trial]:
        """Episodes of random actions, from the starts of the seeds 0, 1, 2 and so on."""
        return self._timed_play[0]

    @property
    def timing(self) -> Timing:
        """How long resets and steps of random play took."""
        return self._timed_play[1]

    @cached_property
    def _timed_play(self) -> tuple[list[Trial], Timing]:
        timing = Timing()
        return self._played(play_at_random, timing), timing

    @property
    def expert_play(self) -> list[Trial]:
        """The expert's episodes, from those of the same starts that have an expert; empty without
        one."""
        return self._expert_play[0]

    @property
    def without_expert(self) -> list[int]:
        """Seeds of those of the starts whose tasks have no expert."""
        return self._expert_play[1]

    @cached_property
    def _expert_play(self) -> tuple[list[Trial], list[int]]:
        played, without = list[Trial](), list[int]()
        env = self.copy()
        checked = CheckedEnv(env)
        for seed in self.in_time(range(STARTS if self.has_expert else 0), share=_PLAY_SHARE):
            checked.reset(seed, seed)
            if has_expert_now(checked):
                played.append(play(env, seed, seed, play_as_expert))
            else:
                without.append(seed)
        return played, without

    @cached_property
    def broken_contract(self) -> str:
        """What the check before every run finds; empty if the contract holds."""
        try:
            check_contract(self.env, self.key)
        except ValueError as error:
            return str(error)
        return ""

    @cached_property
    def starts_repeat(self) -> bool:
        """Whether a second reset to a seed gives the same start: else no two episodes compare."""
        if not self.broken_contract:
            return True
        return all(self._start(seed) == self._start(seed) for seed in range(_REPEATED))

    def _start(self, seed: int) -> tuple[str, str]:
        env = CheckedEnv(self.copy())
        return env.reset(seed, seed).observation, env.state_text()

    @cached_property
    def noise(self) -> Noise:
        """What the noise seed decides."""
        env = CheckedEnv(self.copy())
        return noise_of(env, lambda numbers: self.in_time(numbers, share=_NOISE_SHARE))

    def _played(self, player: ChooseActions, timing: Timing | None = None) -> list[Trial]:
        env, seeds = self.copy(), self.in_time(range(STARTS), share=_PLAY_SHARE)
        return [play(env, seed, seed, player, timing=timing) for seed in seeds]

    def in_time(self, numbers: range, share: float = 1.0) -> Iterator[int]:
        """Yield numbers, at least one, until a share of the time of a check is over.

        What each number costs decides how many there are, so that a slow environment is examined
        with fewer repetitions.
        """
        deadline = time.monotonic() + share * self.seconds
        for number in numbers:
            yield number
            if time.monotonic() > deadline:
                return
