"""Say what samples for a learner, and what chooses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from ragen_pl.models.base import LanguageModel
from ragen_pl.types import Generate, Request

Autocast = Callable[[], AbstractContextManager[object]]
"""The context the trainer computes in."""


class Sampler(Generate, Protocol):
    """Implement ``Generate`` with the policy's weights as they were at the last ``reset``."""

    def reset(self) -> None:
        """Take over the weights, and forget what was computed with earlier ones; called before the
        first request and after every change of the weights."""

    def release(self) -> None:
        """Give back the memory of what was computed, which may be needed again; called when a
        collection or an evaluation is over."""


class Engine(ABC):
    """Choose what samples; the keys are the constructor's."""

    @abstractmethod
    def check(self) -> None:
        """Refuse what cannot be had here; called on every rank, before any model is built.

        Raises:
            ValueError: naming what is missing, and the remedy.
        """

    @abstractmethod
    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> Sampler:
        """Make the sampler.

        Args:
            language: Whose model it speaks for, whatever weights that has by then.
            seed: The run's; what is drawn is a function of it and of the row's identity.
            max_context: Tokens one row can hold.
            autocast: The context to compute in, for who computes with the trainer's own model.
        """


def noise_key(seed: int, request: Request) -> tuple[int, int, int, int, int]:
    """Return what decides a row's noise in one turn: its identity, never its place in a batch."""
    episode = request.episode
    return seed, episode.iteration, episode.group_id, episode.member, request.turn
