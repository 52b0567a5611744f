"""Interfaces of samplers, and of the engines that build them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

from ragen_pl.models.base import LanguageModel
from ragen_pl.types import Generate, Request

Autocast = Callable[[], AbstractContextManager[object]]
"""A function that returns the trainer's autocast context."""


class Sampler(Generate, Protocol):
    """A ``Generate`` with the policy's weights at the time of the last ``reset``."""

    def reset(self) -> None:
        """Take the current weights and drop everything computed with earlier ones.

        Called before the first request and after every change of the weights.
        """

    def release(self) -> None:
        """Free memory that can be computed again; called after a rollout or an evaluation."""


class Engine(ABC):
    """An interface to build a sampler; its constructor's arguments are configuration keys."""

    uses_trainer_model: ClassVar[bool] = False
    """Whether it samples with the trainer's own model, so that in float32 its log-probs are the
    trainer's."""

    @abstractmethod
    def check(self, processes: int) -> None:
        """Check that the engine can run here; called on every rank, before any model is built.

        Args:
            processes: Number of processes of the run.

        Raises:
            ValueError: naming what is missing, and the remedy.
        """

    @abstractmethod
    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> Sampler:
        """Build the sampler.

        Args:
            language: The policy, whose weights are taken at ``Sampler.reset``; an engine may report
                the values of its value head.
            seed: The run's seed; samples are a function of it and of the row's identity.
            max_context: Upper bound of a row's length in tokens.
            autocast: The trainer's autocast, for engines that compute with the trainer's model.
        """


def noise_key(seed: int, request: Request) -> tuple[int, int, int, int, int]:
    """Return the seed of the noise of one request, a function of the episode's identity, the
    request's number and the run's seed, but not of the row's index in a batch."""
    episode = request.episode
    return seed, episode.iteration, episode.group_id, episode.member, request.number
