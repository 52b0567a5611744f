"""Actors that choose actions without a model: the environment's expert and random play.

The policy is not among them: its turns are sampled in batches, by ``collect``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv


@dataclass(frozen=True, slots=True)
class Move:
    """An actor's choice for one turn."""

    actions: tuple[str, ...]
    """At least one."""
    thought: str = ""
    is_random: bool = False
    """Whether the actions were sampled at random in place of the expert's."""


class Actor(ABC):
    """A player that needs no model: random moves or the environment's expert."""

    name: ClassVar[str]

    @abstractmethod
    def can_play(self, env: TextEnv) -> bool:
        """Return whether the environment offers what this actor needs."""

    @abstractmethod
    def act(self, env: CheckedEnv, rng: random.Random, max_actions: int) -> Move:
        """Choose the actions of one turn, from 1 to ``max_actions``.

        Raises:
            EnvError: if the environment breaks its contract.
        """


class RandomActor(Actor):
    """A player of uniformly random actions, as many as a turn allows; actions must have names."""

    name = "random"

    def can_play(self, env: TextEnv) -> bool:
        return env.actions is not None

    def act(self, env: CheckedEnv, rng: random.Random, max_actions: int) -> Move:
        actions = env.actions
        assert actions is not None, f"{env.name} has free-text actions; check can_play first"
        return Move(tuple(rng.choice(actions) for _ in range(max_actions)))


class ExpertActor(Actor):
    """The environment's expert, ``TextEnv.expert_turn``."""

    name = "expert"

    def can_play(self, env: TextEnv) -> bool:
        return env.has_expert

    def act(self, env: CheckedEnv, rng: random.Random, max_actions: int) -> Move:
        thought, actions = env.expert_turn(rng, max_actions)
        return Move(actions, thought)


class NoisyExpertActor(ExpertActor):
    """The expert, whose actions are replaced by equally many random ones in a share of the turns.

    The thought stays the expert's. Free-text actions are never random.

    Args:
        random_turns: Share of the turns, in [0, 1).
    """

    name = "noisy_expert"

    def __init__(self, random_turns: float) -> None:
        self.random_turns = random_turns

    def act(self, env: CheckedEnv, rng: random.Random, max_actions: int) -> Move:
        move = super().act(env, rng, max_actions)
        known = env.actions
        if known is None or rng.random() >= self.random_turns:
            return move
        return Move(tuple(rng.choice(known) for _ in move.actions), move.thought, is_random=True)
