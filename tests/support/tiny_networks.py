"""Make networks small enough for a proof over every algorithm, in the real policy and critic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.training.scoring import ForwardPasses
from ragen_pl.training.update import Update
from tests.support.toy_worlds import WORDS

WIDTH = 4


class Backbone(nn.Module):
    """Remember, at every token, the mean of all up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        words = self.words(input_ids)
        seen = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)[:, None]
        mixed = torch.tanh(self.mix(words.cumsum(1) / seen) + words)
        return SimpleNamespace(last_hidden_state=mixed)


class Config:
    """The part of a model's configuration that is asked for."""

    hidden_size = WIDTH

    def get_text_config(self) -> Config:
        return self


class Language(nn.Module):
    """Look to ``Policy`` like a causal language model."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model = Backbone()
        self.head = nn.Linear(WIDTH, WORDS)
        self.config = Config()

    def get_output_embeddings(self) -> nn.Linear:
        return self.head


def make_policy(seed: int, with_values: bool = False) -> Policy:
    """Draw a policy in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy(cast(Any, Language()), with_values)
        if policy.value_head is not None:
            nn.init.normal_(policy.value_head.weight)
        return policy.double()


def make_critic(seed: int) -> Critic:
    """Draw a critic in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        critic = Critic(Backbone(), WIDTH)
        nn.init.normal_(critic.head.weight)
        return critic.double()


def make_update(
    algorithm: Algorithm,
    policy: Policy,
    critic: Critic | None = None,
    reference: Policy | None = None,
    budget: int = 4096,
    coefficients: Coefficients | None = None,
) -> Update:
    """Put an update together as ``StarPO`` does, on one rank."""
    return Update(
        policy=policy,
        value_function=critic if policy.value_head is None else policy.values,
        reference=reference,
        passes=ForwardPasses(budget, torch.device("cpu")),
        algorithm=algorithm,
        coefficients=coefficients or Coefficients(algorithm),
        backward=torch.Tensor.backward,
    )
