"""Hidden states of rows that begin with the same prompt, which is computed once for all of them.

The members of a group begin with one prompt, often longer than what each of them wrote; and all
trajectories of an environment begin with its instructions, which is what demonstrations share. The
keys and values of a prompt are computed once; what each row has after it attends to them, and their
gradient is the sum over the rows. States and gradients are those of whole rows up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache

from ragen_pl.models.kernels.attention import causal_mask
from ragen_pl.models.kernels.kv_cache import pad_right
from ragen_pl.models.kernels.last_layer import is_known_and_unwrapped, states_at

_MOST_LEFT = 0.6
"""Prompts are shared where at most this fraction of the tokens is left: two passes of small blocks
take longer than their tokens."""
_MOST_LEFT_WIDE = 0.8
"""The same for wide backbones, whose products are slow beside everything else: at 135M parameters,
70 % of the tokens take 76 % of the time."""
_WIDE = 512
"""States of a wide backbone have at least so many elements."""


class _PromptCache(Cache):
    """Keys and values of prompts with their gradients, and of rows that go on after them."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.prompt_of_row: Tensor | None = None
        """Index of each row's prompt, (B,); None while the prompts are read."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values of the prompts; put them before those of the rows."""
        if self.prompt_of_row is None:
            self.keys.append(key_states)
            self.values.append(value_states)
            return key_states, value_states
        before = (self.keys[layer_idx], self.values[layer_idx])
        first, second = (each.index_select(0, self.prompt_of_row) for each in before)
        return torch.cat([first, key_states], dim=2), torch.cat([second, value_states], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the padded length of the prompts."""
        return 0 if self.prompt_of_row is None else self.keys[0].shape[2]


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Rows cut into their distinct prompts and what comes after them.

    A prompt ends with the row's first scored position, or it is what all rows begin with, if that
    leaves fewer tokens to compute.
    """

    prompts: Tensor
    """(P, longest prompt) token ids, right-padded."""
    lengths: Tensor
    """(P,) tokens of each prompt."""
    prompt_of_row: Tensor
    """(B,)."""
    rest: Tensor
    """(B, longest rest) token ids of each row from its prompt to its last scored position,
    right-padded."""
    rest_positions: Tensor
    """Scored positions after the prompts, indices into the flattened ``rest``."""
    order: Tensor
    """(m,) index of each scored state among the last states of the rows' prompts, (B,), and those
    at ``rest_positions``."""

    @classmethod
    def of(cls, input_ids: Tensor, positions: Tensor, most_left: float) -> SharedPrompts | None:
        """Cut rows; None if that would save too little.

        Args:
            input_ids: (B, T) token ids, on the CPU.
            positions: (m,) scored positions, indices into the flattened rows, in order; zeros after
                them are padding.
            most_left: Largest fraction of the tokens that may be left.
        """
        width = input_ids.shape[1]
        given, positions = positions, positions[: int(positions.argmax()) + 1]
        padding = given[len(positions) :]
        rows = positions // width
        batch = int(rows[-1]) + 1  # what follows pads the batch to a shape bucket
        input_ids = input_ids[:batch]
        counts = torch.bincount(rows, minlength=batch)
        if batch == 1 or bool((counts == 0).any()) or bool(padding.any()):
            return None
        first = positions[counts.cumsum(0) - counts] - torch.arange(batch) * width
        cuts = [cls._at(first + 1, input_ids, positions, padding)]
        common = _common_prefix(input_ids)
        if 0 < common <= int(first.min()):  # rows of one prompt are cut after it
            cuts.append(cls._at(torch.full_like(first, common), input_ids, positions, padding))
        best = min(cuts, key=lambda cut: cut.num_tokens)
        return best if best.num_tokens <= most_left * input_ids.numel() else None

    @classmethod
    def _at(
        cls, lengths: Tensor, input_ids: Tensor, positions: Tensor, padding: Tensor
    ) -> SharedPrompts:
        """Cut each row after so many tokens (B,), at most one of them scored, the last."""
        batch, width = input_ids.shape
        rows = positions // width
        column = positions - rows * width
        last = column[torch.bincount(rows, minlength=batch).cumsum(0) - 1] + 1
        cuts = list(zip(input_ids.tolist(), lengths.tolist(), last.tolist(), strict=True))
        known: dict[tuple[int, ...], int] = {}
        prompt_of_row = [known.setdefault(tuple(ids[:cut]), len(known)) for ids, cut, _ in cuts]
        rest, _ = pad_right([ids[cut:end] for ids, cut, end in cuts])
        later = column >= lengths[rows]
        order = torch.where(later, batch + later.cumsum(0) - 1, rows)
        return cls(
            *pad_right(list(known)),
            torch.tensor(prompt_of_row),
            rest,
            rows[later] * rest.shape[1] + (column - lengths[rows])[later],
            torch.cat([order, padding]),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens to compute, padding included."""
        return self.prompts.numel() + self.rest.numel()

    def states(self, backbone: Any) -> Tensor:
        """Return the scored states (m, d)."""
        cache = _PromptCache()
        places = torch.arange(self.prompts.shape[1])
        ends = torch.arange(len(self.prompts)) * len(places) + self.lengths - 1
        states: Tensor = backbone(
            input_ids=self.prompts,
            attention_mask=causal_mask(self.prompts),
            position_ids=places.expand_as(self.prompts),
            past_key_values=cache,
            use_cache=True,
            mask_is_causal=True,
            positions=ends,
        ).last_hidden_state
        found = states.index_select(0, self.prompt_of_row)
        if len(self.rest_positions):
            cache.prompt_of_row = self.prompt_of_row
            own = self.lengths[self.prompt_of_row]
            later: Tensor = backbone(
                input_ids=self.rest,
                attention_mask=self._mask(places < own[:, None]),
                position_ids=own[:, None] + torch.arange(self.rest.shape[1]),
                past_key_values=cache,
                use_cache=True,
                mask_is_causal=True,
                positions=self.rest_positions,
            ).last_hidden_state
            found = torch.cat([found, later])
        return found.index_select(0, self.order)

    def _mask(self, of_prompt: Tensor) -> Tensor:
        """Return the (B, 1, R, P + R) mask: all of the row's prompt, and its own earlier tokens."""
        batch, width = self.rest.shape
        own = torch.ones(width, width, dtype=torch.bool).tril()
        parts = [of_prompt[:, None].expand(-1, width, -1), own.expand(batch, width, width)]
        return torch.cat(parts, dim=2)[:, None]


@dataclass(frozen=True, slots=True)
class PromptSharing:
    """How a backbone computes equal prompts of a micro-batch once."""

    most_left: float
    """Largest fraction of the tokens that may be left for it to do so."""
    threads: int
    """Threads that each read the prompts of their part of the rows."""

    @classmethod
    def of(cls, backbone: nn.Module) -> PromptSharing | None:
        """Return how a backbone does, if rows of one prompt are best in one micro-batch; else None.

        A narrow backbone is better off with rows of like length.
        """
        is_shared = is_known_and_unwrapped(backbone, backbone) and _is_wide(backbone)
        is_on_cpu = all(weight.device.type == "cpu" for weight in backbone.parameters())
        if not is_shared or not is_on_cpu:
            return None
        return cls(_MOST_LEFT_WIDE, torch.get_num_threads())


def _is_wide(backbone: Any) -> bool:
    return bool(backbone.get_input_embeddings().embedding_dim >= _WIDE)


def _common_prefix(input_ids: Tensor) -> int:
    """Return how many tokens all rows begin with."""
    return int((input_ids == input_ids[0]).all(0).long().cumprod(0).sum())


def states_sharing_prompts(
    backbone: nn.Module, input_ids: Tensor, padding: Tensor, positions: Tensor
) -> Tensor:
    """Return a backbone's last hidden states (n, d) at some positions, as ``states_at`` does, with
    equal prompts computed once where that is worth it.

    Args and returns as in ``states_at``.
    """
    if _can_share(backbone, input_ids):
        most_left = _MOST_LEFT_WIDE if _is_wide(backbone) else _MOST_LEFT
        shared = SharedPrompts.of(input_ids, positions, most_left)
        if shared is not None:
            return shared.states(cast(Any, backbone))
    return states_at(backbone, input_ids, padding, positions)


def _can_share(backbone: nn.Module, input_ids: Tensor) -> bool:
    """Return whether a backbone may run twice, with a cache.

    On a GPU rows are not listed, because the program would wait for the device.
    """
    return input_ids.device.type == "cpu" and is_known_and_unwrapped(backbone, backbone)
