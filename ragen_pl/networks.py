"""Derive the networks that an algorithm needs from one language model."""

from __future__ import annotations

from typing import NamedTuple

from transformers import PreTrainedModel

from ragen_pl.algorithm import Algorithm
from ragen_pl.models.lora import copy_sharing_frozen
from ragen_pl.models.policy import Critic, Policy


class Networks(NamedTuple):
    """Hold what is trained and what it is held near."""

    policy: Policy
    critic: Critic | None
    """With a trunk of its own; None without a critic, and where the policy has a value head."""
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
