"""A key-value cache for rows of unequal length, with one buffer per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from ragen_pl.types import to_device

_SLOTS_FIRST, _SLOTS_LAST = 2, 3
"""Dimension of a buffer's slots: before the head dimension, so that a token's numbers are
contiguous, or after it (transposed)."""

STRIDE = 32
"""Slots by which the padded length grows, unless decode steps are captured as CUDA graphs."""


def pad_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, np.ndarray]:
    """Left-pad rows of token ids to a block.

    Returns:
        Ids (rows, width of the longest, at least 1) and the number of real tokens per row, (rows,).
    """
    counts = np.array([len(row) for row in rows])
    width = int(counts.max(initial=1))
    ids = np.zeros((len(rows), width), np.int64)  # filled faster than a tensor
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = row
    return torch.from_numpy(ids), counts


def pad_right(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Right-pad rows of token ids.

    Returns:
        Ids (rows, length of the longest, at least 1) and the lengths, (rows,).
    """
    lengths = [len(row) for row in rows]
    ids = np.zeros((len(rows), max(1, *lengths) if lengths else 1), np.int64)
    for row, length, given in zip(ids, lengths, rows, strict=True):
        row[:length] = given
    return torch.from_numpy(ids), torch.tensor(lengths)


def _prefers_transposed_keys(states: Tensor) -> bool:
    """Return whether this package's attention is faster with transposed keys: on CPUs, in float32.

    PyTorch's own attention would fall back to slow code for them.
    """
    return states.device.type == "cpu" and states.dtype == torch.float32


class RaggedCache(Cache):
    """A transformers cache in which every row has its own length.

    Token p of a row is in slot p. Each forward writes one block: row r's new tokens, left-padded,
    are written after its own last one; padding is written to a spare slot, the last, which the mask
    hides from every token.

    Args:
        rows: Number of rows.
        max_context: Upper bound of a row's length.
        device: Device of keys, values, positions and masks. Lengths are counted on the CPU in
            numpy, whose operations on a few numbers cost a tenth of a tensor's; no shape has to be
            read from the device.
        additive_mask: Whether masks are float, to be added to scores, rather than bool.
        stride: Slots by which the padded length grows.
    """

    def __init__(
        self,
        rows: int,
        max_context: int,
        device: torch.device | str = "cpu",
        additive_mask: bool = False,
        stride: int = STRIDE,
    ) -> None:
        super().__init__(layers=[])
        self.device = device
        self.additive_mask = additive_mask
        self.stride = stride
        self.active_rows = slice(0, rows)
        """The cache rows that the next block extends; the others do not change."""
        self.lengths = np.zeros(rows, np.int64)
        self.max_context = max_context
        self.transposed_keys = False
        """Whether keys are kept as (rows, heads, head dimension, slots)."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots = self.rows = torch.zeros(0, 0, dtype=torch.long)
        """Indices at which the block's tokens are written: slots (rows, width), rows (rows, 1)."""
        self.padded_length = 0
        """Slots per row that the mask covers, including the spare one."""

    def open_block(self, width: int, counts: np.ndarray) -> tuple[Tensor, Tensor]:
        """Start one block of ``width`` columns with ``counts`` real tokens per row, left-padded.

        Returns:
            Position ids (rows, width) and the mask (rows, 1, width, padded_length): each token
            attends to itself and to its row's earlier tokens; padding attends to some token of its
            row, so that its softmax is defined.
        """
        lengths = self.lengths[self.active_rows]
        needed = int((lengths + counts).max()) + 1
        assert needed <= self.max_context + 1, f"a row of {needed - 1} tokens in {self.max_context}"
        if needed > self.padded_length:
            rounded = -(-needed // self.stride) * self.stride
            self.padded_length = min(rounded, self.max_context + 1)
        column = np.arange(width) - (width - counts)[:, None]
        places = np.maximum(lengths[:, None] + column, 0)
        slots = np.where(column >= 0, places, self.padded_length - 1)
        # Small tensors are copied to the device once a block; the mask is built there.
        self.slots = to_device(torch.from_numpy(slots), self.device)
        rows = torch.arange(self.active_rows.start, self.active_rows.stop, device=self.device)
        self.rows = rows[:, None]
        positions = to_device(torch.from_numpy(places), self.device)
        return positions, self._mask(positions)[:, None]

    def _mask(self, last: Tensor) -> Tensor:
        """Return the (rows, width, padded_length) mask that shows each token the slots up to its
        entry of ``last``."""
        if not self.additive_mask:
            return torch.arange(self.padded_length, device=self.device) <= last[..., None]
        # Float operations are faster than bool ones.
        slot = torch.arange(self.padded_length, dtype=torch.float32, device=self.device)
        ahead = (slot - last[..., None].float()).clamp_(0, 1)
        return ahead.mul_(torch.finfo(torch.float32).min)

    def close_block(self, counts: np.ndarray) -> None:
        """Add the block's real tokens to the rows' lengths."""
        self.lengths[self.active_rows] += counts

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the block's keys and values; return all keys and values that the mask covers.

        Keys are kept in the values' type. Under autocast rotary embeddings leave them in float32,
        and every product would cast all of them again.
        """
        key_states = key_states.to(value_states.dtype)
        if layer_idx == len(self.keys):
            self.keys.append(key_states.new_zeros(0))
            self.values.append(key_states.new_zeros(0))
            if layer_idx == 0:
                self.transposed_keys = self.additive_mask and _prefers_transposed_keys(key_states)
        key_dim = _SLOTS_LAST if self.transposed_keys else _SLOTS_FIRST
        keys = self._write(self.keys, layer_idx, key_states, key_dim)
        values = self._write(self.values, layer_idx, value_states, _SLOTS_FIRST)
        return keys.mT if self.transposed_keys else keys, values

    def _write(self, buffers: list[Tensor], layer: int, states: Tensor, slot_dim: int) -> Tensor:
        """Write the block's states into a layer's buffer, which is replaced by a longer one if
        ``padded_length`` exceeds it; return the part that the mask covers."""
        buffer = buffers[layer]
        held = buffer.shape[slot_dim] if buffer.numel() else 0
        if held < self.padded_length:
            _, heads, _, width = states.shape
            slots = self._capacity(states)
            shape = (slots, width) if slot_dim == _SLOTS_FIRST else (width, slots)
            grown = states.new_empty(len(self.lengths), heads, *shape)
            if held:
                grown.narrow(slot_dim, 0, held).copy_(buffer)
            grown.narrow(slot_dim, held, slots - held).zero_()  # masked values must be finite
            buffers[layer] = buffer = grown
        buffer.movedim(slot_dim, 1)[self.rows, self.slots] = states.transpose(1, 2)
        return buffer[self.active_rows].narrow(slot_dim, 0, self.padded_length)

    def _capacity(self, states: Tensor) -> int:
        """Return the number of slots of a new buffer.

        On a GPU buffers have their full length from the beginning, because the allocator cannot
        reuse the memory of outgrown ones. On a CPU they grow. With transposed keys they get a
        quarter more slots than needed, because a batched product reads a part of each row in place.
        With other keys the product would copy that part first, which costs more than the product,
        so their buffers have no spare slots.
        """
        if states.device.type != "cpu":
            return self.max_context + 1
        capacity = self.padded_length * 5 // 4 if self.transposed_keys else self.padded_length
        return min(capacity, self.max_context + 1)

    def reorder(self, index: np.ndarray) -> None:
        """Keep the rows at ``index``, in that order, and make all of them active."""
        moved = np.flatnonzero(index != np.arange(len(index)))
        in_place = len(index) == len(self.lengths) and 2 * len(moved) < len(index)
        source = to_device(torch.from_numpy(index[moved] if in_place else index), self.device)
        target = to_device(torch.from_numpy(moved), self.device)
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                if in_place:
                    buffer[target] = buffer[source]
                else:
                    buffers[layer] = buffer[source]
        self.lengths = self.lengths[index]
        self.active_rows = slice(0, len(index))

    def buffer_addresses(self) -> tuple[int, ...]:
        """Return the buffers' memory addresses, which growing and reordering change."""
        return tuple(buffer.data_ptr() for buffer in (*self.keys, *self.values))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest row."""
        return int(self.lengths.max()) if len(self.lengths) else 0
