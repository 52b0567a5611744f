"""The policy, a causal language model, and the critic, a copy of its backbone with a value head.

The shift between logits and tokens exists in this file only: everywhere else index t is about
token t, so here the hidden state at t−1 gives the log-prob and the value at t.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ragen_pl.models.compile import eager_layers
from ragen_pl.models.kernels.row_threads import in_row_threads
from ragen_pl.models.kernels.shared_prompts import states_sharing_prompts
from ragen_pl.models.lora import copy_sharing_frozen
from ragen_pl.ops.chunked_head import chunked_log_prob_and_entropy
from ragen_pl.ops.losses import log_prob_and_entropy, to_float32
from ragen_pl.ops.shape_buckets import bucket_size


class _ScoredPositions(NamedTuple):
    """Padded rows, and the positions before marked tokens, whose states are scored."""

    input_ids: Tensor
    """(B', T')."""
    padding: Tensor
    """(B', T') bool."""
    positions: Tensor
    """(m,), indices into the flattened rows: those before the n marked tokens in row-major order,
    then padding, whose states are ignored."""

    @classmethod
    def of(cls, input_ids: Tensor, mask: Tensor, padding: Tensor) -> _ScoredPositions:
        """Pad to bucket sizes, and to at least one row, token and position: a rank without rows
        takes part in every pass too, and models do not accept empty tensors."""
        assert not bool(mask[:, :1].any()), "the first token of a row is never sampled"
        device = input_ids.device
        rows, length = (bucket_size(max(1, size), device) for size in input_ids.shape)
        more = (0, length - input_ids.shape[1], 0, rows - len(input_ids))
        positions = pad(mask.roll(-1, dims=1), more).flatten().nonzero()[:, 0]
        size = bucket_size(max(1, len(positions)), device)
        positions = pad(positions, (0, size - len(positions)))
        return cls(pad(input_ids, more), pad(padding, more), positions)

    @property
    def targets(self) -> Tensor:
        """The tokens (m,) after the positions."""
        return self.input_ids.flatten().roll(-1).index_select(0, self.positions)

    def states(self, backbone: nn.Module) -> Tensor:
        """Return the hidden states (m, d) at the positions."""
        return states_sharing_prompts(backbone, *self)


def _log_probs_and_entropies(
    head: nn.Module, states: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies, (n,), of the targets after the states (n, d)."""
    if type(head) is nn.Linear:
        return chunked_log_prob_and_entropy(
            states, head.weight, head.bias, targets, temperature=temperature
        )
    # A head that is more than its weight, such as one with an adapter, is called as a module.
    return log_prob_and_entropy(to_float32(head(states)) / temperature, targets)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Write the first n values to the n marked positions of a (B, T) tensor of zeros."""
    out = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    return out.masked_scatter(mask, values)


class PolicyOutput(NamedTuple):
    """Log-probs, entropies and values of a batch's tokens, each (B, T) and zero off the mask."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor | None = None
    """Values of the states before the tokens, if the policy has a value head."""


class ValueHead(nn.Linear):
    """A linear value head, initialized to zero."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Return (n,) values of the states (n, d)."""
        return to_float32(super().forward(states.to(self.weight.dtype))[:, 0])


class Policy(nn.Module):
    """A causal language model that returns the log-probs of sampled tokens.

    Args:
        model: The language model.
        with_values: Whether a value head uses the same hidden states, in place of a critic with its
            own backbone.
    """

    other_forwards: ClassVar[tuple[str, ...]] = ("values",)
    """Methods that run the network, besides ``forward``."""

    def __init__(self, model: PreTrainedModel, with_values: bool = False) -> None:
        super().__init__()
        self.model = model
        self.value_head = ValueHead(_width(model)) if with_values else None

    def forward(
        self, input_ids: Tensor, mask: Tensor, padding: Tensor, temperature: float = 1.0
    ) -> PolicyOutput:
        """Return log-probs, entropies and values of the tokens in ``mask``.

        The vocabulary projection is computed only for the states before marked tokens.

        Args:
            input_ids: (B, T).
            mask: (B, T) bool, sampled tokens.
            padding: (B, T) bool, true on real tokens.
            temperature: The temperature the tokens were sampled at.
        """
        forward = partial(self._forward, temperature=temperature)
        rows = (input_ids, mask, padding)
        return PolicyOutput(*in_row_threads(forward, self, self.model.base_model, *rows))

    def _forward(
        self, input_ids: Tensor, mask: Tensor, padding: Tensor, temperature: float
    ) -> tuple[Tensor, ...]:
        """Return log-probs, entropies and, with a value head, values of rows."""
        scored = _ScoredPositions.of(input_ids, mask, padding)
        states = scored.states(self.model.base_model)
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        found: tuple[Tensor, ...] = _log_probs_and_entropies(
            head, states, scored.targets, temperature
        )
        if self.value_head is not None:
            found = (*found, self.value_head(states))
        return tuple(_scatter(each, mask) for each in found)

    def values(self, input_ids: Tensor, mask: Tensor, padding: Tensor) -> Tensor:
        """Return the value head's values, like a ``Critic``, without gradients to the backbone."""
        rows = (input_ids, mask, padding)
        return in_row_threads(self._values, self, self.model.base_model, *rows)[0]

    def _values(self, input_ids: Tensor, mask: Tensor, padding: Tensor) -> tuple[Tensor]:
        assert self.value_head is not None
        with torch.no_grad():
            states = _ScoredPositions.of(input_ids, mask, padding).states(self.model.base_model)
        return (_scatter(self.value_head(states), mask),)


class Critic(nn.Module):
    """A value function of the state before each token: its own backbone and a value head."""

    def __init__(self, backbone: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = ValueHead(hidden_size)

    @classmethod
    def like(cls, model: PreTrainedModel) -> Critic:
        """Build a critic from a copy of the policy's backbone, as the paper does; frozen weights
        are shared."""
        return cls(copy_sharing_frozen(model.base_model), _width(model))

    def start_from(self, model: PreTrainedModel) -> None:
        """Copy the policy's backbone weights, which after a warm start already represent the
        state."""
        self.backbone.load_state_dict(model.base_model.state_dict())

    def forward(self, input_ids: Tensor, mask: Tensor, padding: Tensor) -> Tensor:
        """Return values (B, T) of the states before the tokens in ``mask``, zero elsewhere."""
        return in_row_threads(self._forward, self, self.backbone, input_ids, mask, padding)[0]

    def _forward(self, input_ids: Tensor, mask: Tensor, padding: Tensor) -> tuple[Tensor]:
        states = _ScoredPositions.of(input_ids, mask, padding).states(self.backbone)
        return (_scatter(self.head(states), mask),)


def _width(model: PreTrainedModel) -> int:
    """Return the width of the hidden states, also of a model that sees images, too."""
    return int(model.config.get_text_config().hidden_size)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode, with its compiled layers run eagerly, and restore the mode
    of each part afterwards.

    Evaluating the policy must not consume random numbers of the training.
    """
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with eager_layers(module):
            yield
    finally:
        for part in training:
            part.training = True


def drop_embedding_gradients(policy: Policy, critic: Critic | None) -> None:
    """Drop the gradients of the token embeddings, so that the next step does not change them."""
    for module in (policy, critic):
        for part in module.modules() if module is not None else ():
            if isinstance(part, nn.Embedding):
                part.weight.grad = None
