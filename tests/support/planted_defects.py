"""Environments, models, engines and reward terms with one defect each, for ``doctor`` to find."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.engines import InProcess
from ragen_pl.rollout.engines.base import Autocast
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.rollout.rewards import PlayedTurn, RewardTerm
from ragen_pl.types import Completion, Request, Sampling
from tests.support.broken_envs import Cheat as Cheat
from tests.support.broken_envs import Endless as Endless
from tests.support.broken_envs import Gambler as Gambler
from tests.support.broken_envs import Gossip as Gossip
from tests.support.broken_envs import Hopeless as Hopeless
from tests.support.broken_envs import Restless as Restless
from tests.support.broken_envs import Stingy as Stingy
from tests.support.toy_env import Stairs

Step = tuple[str, float, bool, bool, dict[str, Any]]


class Tagged(Stairs):
    """Has an expert whose thoughts hold the format's tags."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        thought, actions = super().expert_turn(rng, max_actions)
        return f"{thought}</think><answer>", actions


class Leaky(Stairs):
    """Has forty starts, whatever the seed is for."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.number = (seed or 0) % 40
        return super().reset(seed=seed, options=options)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "number": self.number}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.number = state["number"]


class Even(RewardTerm):
    """The same for every turn."""

    def __call__(self, turn: PlayedTurn) -> float:
        return 0.5


class _OtherTemperature(InProcessSampler):
    factor = 1.0

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        other = Sampling(self.factor * sampling.temperature, sampling.max_new_tokens)
        return super().__call__(requests, other)


class _Hot(_OtherTemperature):
    factor = 3.0


class _Greedy(_OtherTemperature):
    factor = 0.0


class HotEngine(InProcess):
    """Samples at three times the temperature."""

    sampler: ClassVar[type[InProcessSampler]] = _Hot

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> InProcessSampler:
        return self.sampler(
            language.model,
            stop_id=language.markers.end,
            seed=seed,
            max_context=max_context,
            autocast=autocast,
        )


class GreedyEngine(HotEngine):
    """Takes the likeliest token, and reports the log-probs of the whole distribution."""

    sampler = _Greedy


class _Noise(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, states: Tensor) -> Tensor:
        normed: Tensor = self.norm(states)
        return normed + 0.3 * torch.randn_like(normed)


class NoisyModel(EmbeddedModel):
    """Gives other log-probs at each pass."""

    def build(self, pieces: Iterable[str], seed: int) -> LanguageModel:
        language = super().build(pieces, seed)
        language.model.model.norm = _Noise(language.model.model.norm)  # type: ignore[assignment]
        return language
