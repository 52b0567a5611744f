"""Derive the networks that an algorithm needs from one language model."""

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
    """Hold what is trained and what it is held near."""

    policy: Policy
    critic: Critic | None
    """With a backbone of its own; None without a critic, and where the policy has a value head."""
    reference: Policy | None
    """The policy that RL starts from; None without a KL term."""

    @classmethod
    def of(cls, model: PreTrainedModel, algorithm: Algorithm) -> Networks:
        """Make a policy of the model, and of copies the others; weights that are not trained are
        shared by all."""
        critic, reference = None, None
        if algorithm.critic is not None and not algorithm.values_from_policy:
            critic = Critic.like(model)
        if algorithm.kl is not None:
            reference = Policy(copy_sharing_frozen(model)).requires_grad_(False)
        return cls(Policy(model, algorithm.values_from_policy), critic, reference)

    def compile(self) -> None:
        """Compile the layers of each, in place; what is compiled serves them all."""
        for network in self:
            if network is not None:
                compile_layers(network)


def build_networks(
    trainable: TrainableModel, algorithm: Algorithm, pieces: Iterable[str], is_sharded: bool
) -> tuple[LanguageModel, Networks]:
    """Build or load the model, and derive the networks.

    Args:
        trainable: Which model, with or without adapters.
        algorithm: What is needed beside the policy.
        pieces: Text the run is made of, for who makes a tokenizer.
        is_sharded: Whether weights will be shards. The first rank then reads them for all, and on
            the others what lies on the meta device waits for them: N ranks on a machine would need
            N times the model's memory.

    Raises:
        ValueError: when that cannot be done as configured.
    """
    with_weights = not is_sharded or rank() == 0
    language = trainable.build(pieces, with_weights)
    with nullcontext() if with_weights else torch.device("meta"):
        return language, Networks.of(language.model, algorithm)
