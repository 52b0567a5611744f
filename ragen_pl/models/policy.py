"""Wrap a causal language model as policy, and its backbone, or a copy of it, as critic.

The shift between logits and tokens exists in this file only: everywhere else index t is about
token t, so here the hidden state at t−1 gives the log-prob and the value at t.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ragen_pl.models.compile import eager_layers
from ragen_pl.models.kernels.last_layer import states_at
from ragen_pl.models.lora import copy_sharing_frozen
from ragen_pl.ops.chunked_head import chunked_log_prob_and_entropy
from ragen_pl.ops.losses import log_prob_and_entropy, to_float32
from ragen_pl.ops.shape_buckets import bucket_size


class _ScoredPositions(NamedTuple):
    """Lay rows out for a backbone that is asked for the states before marked tokens."""

    input_ids: Tensor
    """(B', T')."""
    padding: Tensor
    """(B', T') bool."""
    places: Tensor
    """(m,), in the rows laid end to end: those before the n marked tokens in row-major order, then
    any, of which nothing is taken."""

    @classmethod
    def of(cls, input_ids: Tensor, mask: Tensor, padding: Tensor) -> _ScoredPositions:
        """Add padding where sizes had better come again, and where there is nothing: a rank that
        has no rows left takes part in a pass, and models cannot shape nothing."""
        assert not bool(mask[:, :1].any()), "the first token of a row is never sampled"
        device = input_ids.device
        rows, length = (bucket_size(max(1, size), device) for size in input_ids.shape)
        more = (0, length - input_ids.shape[1], 0, rows - len(input_ids))
        places = pad(mask.roll(-1, dims=1), more).flatten().nonzero()[:, 0]
        places = pad(places, (0, bucket_size(max(1, len(places)), device) - len(places)))
        return cls(pad(input_ids, more), pad(padding, more), places)

    @property
    def targets(self) -> Tensor:
        """The tokens (m,) behind the places."""
        return self.input_ids.flatten().roll(-1).index_select(0, self.places)

    def states(self, backbone: nn.Module) -> Tensor:
        """Return the hidden states (m, d) at the places."""
        return states_at(backbone, *self)


def _score(
    head: nn.Module, states: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies, (n,), of the targets after the states (n, d)."""
    if type(head) is nn.Linear:
        return chunked_log_prob_and_entropy(
            states, head.weight, head.bias, targets, temperature=temperature
        )
    # A head with more to it than its weight, such as an adapter's, is asked whole.
    return log_prob_and_entropy(to_float32(head(states)) / temperature, targets)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Lay the first n values out at the n marked places of a (B, T) tensor of zeros."""
    out = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    return out.masked_scatter(mask, values)


class PolicyOutput(NamedTuple):
    """Hold what a policy says of a batch, each (B, T) and zero off the mask."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor | None
    """Of the states before the tokens, where the policy has a value head."""


class ValueHead(nn.Linear):
    """Read the return that is to be expected off a hidden state; at first it expects nothing."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Return (n,) values of the states (n, d)."""
        return to_float32(super().forward(states.to(self.weight.dtype))[:, 0])


class Policy(nn.Module):
    """Score sampled tokens under a causal language model.

    Args:
        model: The language model.
        with_values: Whether a value head reads the same hidden states, in place of a critic with a
            backbone of its own.
    """

    other_forwards: ClassVar[tuple[str, ...]] = ("values",)
    """Methods that run the network, beside ``forward``."""

    def __init__(self, model: PreTrainedModel, with_values: bool = False) -> None:
        super().__init__()
        self.model = model
        self.value_head = ValueHead(model.config.hidden_size) if with_values else None

    def forward(
        self, input_ids: Tensor, mask: Tensor, padding: Tensor, temperature: float = 1.0
    ) -> PolicyOutput:
        """Score the tokens in ``mask``.

        Only the states before marked tokens go through the vocabulary projection.

        Args:
            input_ids: (B, T).
            mask: (B, T) bool, sampled tokens.
            padding: (B, T) bool, true on real tokens.
            temperature: The one the tokens were sampled at.
        """
        asked = _ScoredPositions.of(input_ids, mask, padding)
        states = asked.states(self.model.base_model)
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        log_probs, entropy = _score(head, states, asked.targets, temperature)
        values = None if self.value_head is None else _scatter(self.value_head(states), mask)
        return PolicyOutput(_scatter(log_probs, mask), _scatter(entropy, mask), values)

    def values(self, input_ids: Tensor, mask: Tensor, padding: Tensor) -> Tensor:
        """Return what a ``Critic`` does, by the value head; the backbone learns nothing from it."""
        assert self.value_head is not None
        with torch.no_grad():
            states = _ScoredPositions.of(input_ids, mask, padding).states(self.model.base_model)
        return _scatter(self.value_head(states), mask)


class Critic(nn.Module):
    """Estimate the return from the state before each token: a backbone of its own and a head."""

    def __init__(self, backbone: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = ValueHead(hidden_size)

    @classmethod
    def like(cls, model: PreTrainedModel) -> Critic:
        """Start from a copy of the policy's backbone, as the paper does; a frozen base is
        shared."""
        return cls(copy_sharing_frozen(model.base_model), model.config.hidden_size)

    def start_from(self, model: PreTrainedModel) -> None:
        """Take over the policy's backbone weights: a warm-started backbone already sees the
        state."""
        self.backbone.load_state_dict(model.base_model.state_dict())

    def forward(self, input_ids: Tensor, mask: Tensor, padding: Tensor) -> Tensor:
        """Return values (B, T) of the states before the tokens in ``mask``, zero elsewhere."""
        states = _ScoredPositions.of(input_ids, mask, padding).states(self.backbone)
        return _scatter(self.head(states), mask)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch dropout and its like off, and back on where they were: a look at the policy must not
    draw from the training's random stream. Compiled layers run as they were written."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with eager_layers(module):
            yield
    finally:
        for part in training:
            part.training = True


def drop_embedding_gradients(policy: Policy, critic: Critic | None) -> None:
    """Forget the gradients of the token embeddings, so that the next step leaves them alone."""
    for module in (policy, critic):
        for part in module.modules() if module is not None else ():
            if isinstance(part, nn.Embedding):
                part.weight.grad = None
