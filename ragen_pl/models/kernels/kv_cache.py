"""Keep keys and values of rows of unequal length in one buffer per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from ragen_pl.types import to_device

_ALONG, _ACROSS = 2, 3
"""Dimension of a buffer's slots: before a head's width, so that a token's numbers stand together,
or behind it."""

STRIDE = 32
"""Slots by which what a mask covers grows, where no steps are recorded."""


def pad_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, np.ndarray]:
    """Lay rows of tokens out as a block.

    Returns:
        Ids (rows, width of the longest, at least 1) and how many of each row are real, (rows,).
    """
    counts = np.array([len(row) for row in rows])
    width = int(counts.max(initial=1))
    ids = np.zeros((len(rows), width), np.int64)  # filled faster than a tensor
    for place, row in enumerate(rows):
        ids[place, width - len(row) :] = row
    return torch.from_numpy(ids), counts


def _reads_columns(states: Tensor) -> bool:
    """Say whether a query's product with keys is faster where a head's numbers of one kind stand
    together: on CPUs, in float32 alone, and for our own attention; PyTorch's falls back to slow
    code."""
    return states.device.type == "cpu" and states.dtype == torch.float32


class RaggedCache(Cache):
    """A transformers cache in which every row has its own length.

    Token p of a row lies in slot p. Each forward writes one block: row r's new tokens, left-padded,
    land behind its own last one; padding lands in a spare slot, the last, that no token looks at.

    Args:
        rows: Number of rows.
        max_context: Upper bound of a row's length.
        device: Of keys, values, positions and masks. Lengths are counted in numpy, whose operations
            on a few numbers cost a tenth of a tensor's, and nothing waits for the device to know a
            shape.
        adds: Whether masks are added to scores, and not bool.
        stride: Slots by which what a mask covers grows.
    """

    def __init__(
        self,
        rows: int,
        max_context: int,
        device: torch.device | str = "cpu",
        adds: bool = False,
        stride: int = STRIDE,
    ) -> None:
        super().__init__(layers=[])
        self.device = device
        self.adds = adds
        self.stride = stride
        self.window = slice(0, rows)
        """The rows the next block is for; the others rest."""
        self.lengths = np.zeros(rows, np.int64)
        self.max_context = max_context
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.across = _ALONG
        """Dimension of the keys' slots; values have theirs along."""
        self.slots = self.rows = torch.zeros(0, 0, dtype=torch.long)
        self.reach = 0
        """Slots of every row, the spare one included: what a mask covers."""

    def open_block(self, width: int, counts: np.ndarray) -> tuple[Tensor, Tensor]:
        """Plan one block of ``width`` columns with ``counts`` real tokens per row, left-padded.

        Returns:
            Position ids (rows, width) and the mask (rows, 1, width, reach): each token sees itself
            and what lies before it, padding something of its row, so that its softmax is over
            something.
        """
        positions = self.place_block(width, counts)
        return positions, self._mask(positions)[:, None]

    def place_block(self, width: int, counts: np.ndarray) -> Tensor:
        """Do what ``open_block`` does, for who has a mask of its own."""
        lengths = self.lengths[self.window]
        needed = int((lengths + counts).max()) + 1
        assert needed <= self.max_context + 1, f"a row of {needed - 1} tokens in {self.max_context}"
        if needed > self.reach:
            rounded = -(-needed // self.stride) * self.stride
            self.reach = min(rounded, self.max_context + 1)
        column = np.arange(width) - (width - counts)[:, None]
        places = np.maximum(lengths[:, None] + column, 0)
        slots = np.where(column >= 0, places, self.reach - 1)
        # What is small goes over once a block; the mask is made where it is used.
        self.slots = to_device(torch.from_numpy(slots), self.device)
        rows = torch.arange(self.window.start, self.window.stop, device=self.device)
        self.rows = rows[:, None]
        return to_device(torch.from_numpy(places), self.device)

    def _mask(self, last: Tensor) -> Tensor:
        """Show (rows, width, reach) slots up to each column's last."""
        if not self.adds:
            return torch.arange(self.reach, device=self.device) <= last[..., None]
        # Numbers pass through a processor faster than bools do.
        slot = torch.arange(self.reach, dtype=torch.float32, device=self.device)
        ahead = (slot - last[..., None].float()).clamp_(0, 1)
        return ahead.mul_(torch.finfo(torch.float32).min)

    def close_block(self, counts: np.ndarray) -> None:
        """Count the block's tokens as read."""
        self.lengths[self.window] += counts

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the block's keys and values; return all that the mask may show.

        Keys are kept in the values' type. Under autocast rotating leaves them in float32, and every
        product would round them all again.
        """
        key_states = key_states.to(value_states.dtype)
        if layer_idx == len(self.keys):
            self.keys.append(key_states.new_zeros(0))
            self.values.append(key_states.new_zeros(0))
            if layer_idx == 0:
                self.across = _ACROSS if self.adds and _reads_columns(key_states) else _ALONG
        keys = self._write(self.keys, layer_idx, key_states, self.across)
        values = self._write(self.values, layer_idx, value_states, _ALONG)
        return keys.mT if self.across == _ACROSS else keys, values

    def _write(self, buffers: list[Tensor], layer: int, states: Tensor, slot_dim: int) -> Tensor:
        """Write the block's states into a layer's buffer, or into a longer one where ``reach`` asks
        for it; return what the mask may show of it."""
        buffer = buffers[layer]
        held = buffer.shape[slot_dim] if buffer.numel() else 0
        if held < self.reach:
            _, heads, _, width = states.shape
            slots = self._room(states)
            shape = (slots, width) if slot_dim == _ALONG else (width, slots)
            grown = states.new_empty(len(self.lengths), heads, *shape)
            if held:
                grown.narrow(slot_dim, 0, held).copy_(buffer)
            grown.narrow(slot_dim, held, slots - held).zero_()  # what is hidden must be finite
            buffers[layer] = buffer = grown
        buffer.movedim(slot_dim, 1)[self.rows, self.slots] = states.transpose(1, 2)
        return buffer[self.window].narrow(slot_dim, 0, self.reach)

    def _room(self, states: Tensor) -> int:
        """Return the slots of a new buffer.

        A GPU's allocator finds no use for buffers that were outgrown: there they have their full
        length. On a CPU they grow, by a quarter where a batched product reads a part of each row as
        it lies; where it would copy that part first, which costs more than the product, they are
        read whole.
        """
        if states.device.type != "cpu":
            return self.max_context + 1
        room = self.reach * 5 // 4 if self.across == _ACROSS else self.reach
        return min(room, self.max_context + 1)

    def reorder(self, index: np.ndarray) -> None:
        """Keep the rows at ``index``, in that order, and put all of them into the window."""
        moved = np.flatnonzero(index != np.arange(len(index)))
        in_place = len(index) == len(self.lengths) and 2 * len(moved) < len(index)
        source = to_device(torch.from_numpy(index[moved] if in_place else index), self.device)
        to = to_device(torch.from_numpy(moved), self.device)
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                if in_place:
                    buffer[to] = buffer[source]
                else:
                    buffers[layer] = buffer[source]
        self.lengths = self.lengths[index]
        self.window = slice(0, len(index))

    def addresses(self) -> tuple[int, ...]:
        """Say where the buffers lie, which growing and reordering change."""
        return tuple(buffer.data_ptr() for buffer in (*self.keys, *self.values))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.lengths.max()) if len(self.lengths) else 0
