"""The networks that an algorithm needs, derived from one language model."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from ragen_pl.algorithms.config import Algorithm
from ragen_pl.distributed.collectives import rank
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.compile import compile_layers
from ragen_pl.models.lora import copy_sharing_frozen
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.models.trainable import TrainableModel


class Networks(NamedTuple):
    """Policy, critic and reference policy."""

    policy: Policy
    critic: Critic | None
    """A critic with its own backbone; None without a critic, or with a value head on the policy."""
    reference: Policy | None
    """The policy that RL starts from; None without a KL term."""

    @classmethod
    def of(cls, model: PreTrainedModel, algorithm: Algorithm) -> Networks:
        """Build the policy on the model itself and the other networks on copies of it.

        All networks share the weights that are not trained.
        """
        critic, reference = None, None
        if algorithm.critic is not None and not algorithm.values_from_policy:
            critic = Critic.like(model)
        if algorithm.kl is not None:
            reference = Policy(copy_sharing_frozen(model)).requires_grad_(False)
        return cls(Policy(model, algorithm.values_from_policy), critic, reference)

    def compile(self) -> None:
        """Compile each network's layers in place; the networks share the compiled code."""
        for network in self:
            if network is not None:
                compile_layers(network)


def build_networks(
    trainable: TrainableModel, algorithm: Algorithm, pieces: Iterable[str], is_sharded: bool
) -> tuple[LanguageModel, Networks]:
    """Build or load the model, and derive the networks.

    Args:
        trainable: The model, with or without adapters.
        algorithm: Algorithm, which decides what networks are needed besides the policy.
        pieces: Texts of the run's environments, for models that build their tokenizer from them.
        is_sharded: Whether the weights will be sharded. If so, only rank 0 reads them, and the
            other ranks build on the meta device: N ranks of a machine that all read them would need
            N times the model's memory.

    Raises:
        ValueError: when the model cannot be built or loaded as configured.
    """
    with_weights = not is_sharded or rank() == 0
    language = trainable.build(pieces, with_weights)
    with nullcontext() if with_weights else torch.device("meta"):
        return language, Networks.of(language.model, algorithm)
