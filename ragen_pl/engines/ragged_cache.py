"""Keep keys and values of rows of unequal length in one buffer per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from ragen_pl.models.attention import additive

_ALONG, _ACROSS = 2, 3
"""Dimension of a buffer's slots: before a head's width, so that a token's numbers stand together,
or behind it."""

STRIDE = 32
"""Slots by which buffers grow on a CPU. There they are read whole: a batched product over a part of
every row would copy that part first, which costs more than the product. A GPU's product does not,
and its allocator finds no use for buffers that were outgrown: there they have their full length."""


def pad_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Lay rows of tokens out as a block.

    Returns:
        Ids (rows, width of the longest, at least 1) and how many of each row are real, (rows,).
    """
    counts = [len(row) for row in rows]
    ids = np.zeros((len(rows), max(1, *counts)), np.int64)  # filled faster than a tensor
    for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
        ids[place, ids.shape[1] - count :] = row
    return torch.from_numpy(ids), torch.tensor(counts)


def _reads_columns(states: Tensor) -> bool:
    """Say whether a query's product with keys is faster where a head's numbers of one kind stand
    together: on CPUs, in float32 alone, and for our own attention; PyTorch's falls back to slow
    code."""
    return states.device.type == "cpu" and states.dtype == torch.float32


class RaggedCache(Cache):
    """A transformers cache in which every row has its own length.

    Each forward writes one block: row r's new tokens, left-padded, land behind its own last one;
    padding lands in a spare slot that no token looks at.

    Args:
        rows: Number of rows.
        max_context: Upper bound of a row's length.
        device: Of keys, values, positions and masks; ``lengths`` is counted on the CPU, so that
            nothing waits for the device to know a shape.
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
        self.lengths = torch.zeros(rows, dtype=torch.long)
        self.max_context = max_context
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.across = _ALONG
        """Dimension of the keys' slots; values have theirs along."""
        self.slots = self.rows = torch.zeros(0, 0, dtype=torch.long)
        self.reach = 0
        """Slots of every row, the spare one included: what a mask covers."""
        self.shown: tuple[slice, Tensor, Tensor] | None = None
        """Of a block of one token: its window, counts and mask; the next adds its slots."""

    def open_block(self, width: int, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Plan one block of ``width`` columns with ``counts`` real tokens per row, left-padded.

        Returns:
            Position ids (rows, width) and the mask (rows, 1, width, reach), good until the next
            block.
        """
        lengths = self.lengths[self.window]
        after = lengths + counts
        needed = int(after.max()) + 1
        if needed > self.reach:
            rounded = -(-needed // self.stride) * self.stride
            self.reach = max(needed, min(rounded, self.max_context + 1))
            self.shown = None
        # Slot 0 is the spare one; token p of a row lies in slot p + 1.
        if width == 1:
            positions, slots = lengths.clone(), after.mul_(counts)
            positions, slots = positions[:, None], slots[:, None]
        else:
            column = torch.arange(width)[None] - (width - counts)[:, None]
            real = column >= 0
            positions = (lengths[:, None] + column) * real
            slots = (positions + 1) * real
        # What is small goes over once a block; the mask is made where it is used.
        self.slots = slots.to(self.device)
        rows = torch.arange(self.window.start, self.window.stop, device=self.device)
        self.rows = rows[:, None]
        return positions.to(self.device), self._mask(counts)

    def _mask(self, counts: Tensor) -> Tensor:
        """Show each token itself and what lies before it.

        Padding sees the spare slot alone, so that its softmax is over something; in a block of one
        token that follows another it sees what its row saw, too.
        """
        slots = self.slots
        single = slots.shape[1] == 1
        if single and self.shown is not None and self.shown[0] == self.window:
            _, before, mask = self.shown
            if not (counts > before).any():  # who rested saw the spare slot
                self.shown = (self.window, counts, mask)
                return mask.scatter_(3, slots[:, None, :, None], 0.0 if self.adds else True)
        slot = torch.arange(self.reach, device=self.device)[None, None]
        visible = (slot >= (slots > 0)[:, :, None].long()) & (slot <= slots[:, :, None])
        mask = (additive(visible, torch.float32) if self.adds else visible)[:, None]
        self.shown = (self.window, counts, mask) if single else None
        return mask

    def close_block(self, counts: Tensor) -> None:
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
        if not buffer.numel() or buffer.shape[slot_dim] < self.reach:
            _, heads, _, width = states.shape
            slots = self.reach if states.device.type == "cpu" else self.max_context + 1
            shape = (slots, width) if slot_dim == _ALONG else (width, slots)
            grown = states.new_zeros(len(self.lengths), heads, *shape)
            if buffer.numel():
                grown.narrow(slot_dim, 0, buffer.shape[slot_dim]).copy_(buffer)
            buffers[layer] = buffer = grown
        buffer.movedim(slot_dim, 1)[self.rows, self.slots] = states.transpose(1, 2)
        return buffer[self.window].narrow(slot_dim, 0, self.reach)

    def reorder(self, index: Tensor) -> None:
        """Keep the rows at ``index``, in that order, and put all of them into the window."""
        moved = torch.nonzero(index != torch.arange(len(index)))[:, 0]
        in_place = len(index) == len(self.lengths) and 2 * len(moved) < len(index)
        to, source = moved.to(self.device), (index[moved] if in_place else index).to(self.device)
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                if in_place:
                    buffer[to] = buffer[source]
                else:
                    buffers[layer] = buffer[source]
        self.lengths = self.lengths[index]
        self.window = slice(0, len(index))
        self.shown = None

    def addresses(self) -> tuple[int, ...]:
        """Say where the buffers lie, which growing and reordering change."""
        return tuple(buffer.data_ptr() for buffer in (*self.keys, *self.values))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.lengths.max()) if len(self.lengths) else 0
