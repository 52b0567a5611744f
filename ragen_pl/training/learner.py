"""The learner, as far as those who collect for it know it.

``current_learner`` is the one line that points backwards: whoever needs the learner asks the
trainer for it at that moment, and keeps no reference to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

from lightning.pytorch import Trainer

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.endpoint import EndpointClient
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.self_distillation import SelfDistillation
from ragen_pl.training.distillation import HintedRollout
from ragen_pl.types import Completion, Phase, Request, RolloutBatch, Sampling, TrainingBatch


class Learner(Protocol):
    """Interface of the module that rollouts are collected for."""

    iteration: int
    language: LanguageModel
    endpoint: EndpointClient | None
    """The connection to a policy that is behind an endpoint; None for one with weights here."""

    @property
    def comparing_members(self) -> str | None:
        """Name of the estimator that compares the members of a group; None without one."""

    @property
    def critic_only_iterations(self) -> int:
        """Number of first RL iterations in which only the critic is trained."""

    def check_rollouts(
        self,
        envs: Collection[str],
        prompts: Prompts,
        rollout: RolloutConfig,
        hindsight: HindsightImitation | None = None,
    ) -> None:
        """Raise a ``ValueError`` if nothing can be learned from such rollouts; called before
        weights are built. ``envs`` names the environments of a mixture; ``hindsight`` is the
        imitation of solutions, beside RL or alone."""

    def begin_iteration(self, phase: Phase) -> None:
        """Prepare for an iteration; called before its first batch."""

    def rollout_weights(self, max_context: int) -> AbstractContextManager[None]:
        """Return a context for generating rows of at most ``max_context`` tokens.

        Every rank must enter and leave it, even if it generates nothing.
        """

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Sample with the current weights; see ``ragen_pl.types.Generate``."""

    def build_training_batch(self, rollout: RolloutBatch, *, on_policy: bool) -> TrainingBatch:
        """Add the learner's estimates; ``on_policy`` if the rollout is used for a single update."""

    def distill(
        self, batch: TrainingBatch, hinted: HintedRollout, config: SelfDistillation
    ) -> TrainingBatch:
        """Add the advantages of self-distillation; every rank must call it."""


def current_learner(trainer: Trainer) -> Learner:
    """Return the trainer's module."""
    return cast(Learner, trainer.lightning_module)
