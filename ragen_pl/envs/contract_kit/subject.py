"""What the checks look at: an environment, and episodes that are played in it once."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from functools import cached_property

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract_kit.trial import (
    ChooseActions,
    Trial,
    play,
    play_as_expert,
    play_at_random,
)

STARTS = 24
"""Starts that expert and random play are tried at."""
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

    @cached_property
    def random_play(self) -> list[Trial]:
        """Episodes of random actions."""
        return self._played(play_at_random)

    @cached_property
    def expert_play(self) -> list[Trial]:
        """The expert's episodes; empty without one."""
        return self._played(play_as_expert) if self.has_expert else []

    def _played(self, player: ChooseActions) -> list[Trial]:
        env = self.copy()
        return [play(env, seed, seed, player) for seed in self.in_time(range(STARTS))]

    def in_time(self, numbers: range, share: float = 1.0) -> Iterator[int]:
        """Yield numbers, at least one, until a share of the time of a check is over."""
        deadline = time.monotonic() + share * self.seconds
        for number in numbers:
            yield number
            if time.monotonic() > deadline:
                return
