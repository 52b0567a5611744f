"""Keep keys and values of rows of unequal length in one buffer per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

_STRIDE = 32
"""Slots by which buffers grow on a CPU. There they are read whole: a batched product over a part of
every row would copy that part first, which costs more than the product. A GPU's product does not,
and its allocator finds no use for buffers that were outgrown: there they have their full length."""


def pad_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Lay rows of tokens out as a block.

    Returns:
        Ids (rows, width of the longest) and how many of each row are real, (rows,).
    """
    counts = [len(row) for row in rows]
    width = max(counts)
    ids = [[0] * (width - count) + list(row) for row, count in zip(rows, counts, strict=True)]
    return torch.tensor(ids), torch.tensor(counts)


class RaggedCache(Cache):
    """A transformers cache in which every row has its own length.

    Each forward writes one block: row r's new tokens, left-padded, land behind its own last one;
    padding lands in a spare slot that nothing looks at.

    Args:
        rows: Number of rows.
        max_context: Upper bound of a row's length.
        device: Of keys, values, positions and masks; ``lengths`` is counted on the CPU, so that
            nothing waits for the device to know a shape.
    """

    def __init__(self, rows: int, max_context: int, device: torch.device | str = "cpu") -> None:
        super().__init__(layers=[])
        self.device = device
        self.window = slice(0, rows)
        """The rows the next block is for; the others rest."""
        self.lengths = torch.zeros(rows, dtype=torch.long)
        self.max_context = max_context
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots = self.rows = torch.zeros(0, 0, dtype=torch.long)
        self.reach = 0
        """Slots of every row, the spare one included: what a mask covers."""

    def open_block(self, width: int, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Plan one block of ``width`` columns with ``counts`` real tokens per row, left-padded.

        Returns:
            Position ids (rows, width) and the bool mask (rows, 1, width, reach).
        """
        lengths = self.lengths[self.window]
        column = torch.arange(width)[None] - (width - counts)[:, None]
        real = column >= 0
        positions = (lengths[:, None] + column) * real
        needed = int((lengths + counts).max()) + 1
        if needed > self.reach:
            self.reach = max(needed, min(-(-needed // _STRIDE) * _STRIDE, self.max_context + 1))
        # What is small goes over once a block; the mask is made where it is used.
        # Slot 0 is the spare one; token p of a row lies in slot p + 1.
        self.slots = slots = ((positions + 1) * real).to(self.device)
        rows = torch.arange(self.window.start, self.window.stop, device=self.device)
        self.rows = rows[:, None]
        slot = torch.arange(self.reach, device=self.device)[None, None]
        # Padding sees the spare slot alone, so that its softmax is over something.
        mask = (slot >= (slots > 0)[:, :, None].long()) & (slot <= slots[:, :, None])
        return positions.to(self.device), mask[:, None]

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
            for buffers in (self.keys, self.values):
                buffers.append(key_states.new_zeros(0))
        for buffers, states in ((self.keys, key_states), (self.values, value_states)):
            buffer = buffers[layer_idx] = self._grown(buffers[layer_idx], states)
            buffer.transpose(1, 2)[self.rows, self.slots] = states.transpose(1, 2)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        return keys[self.window, :, : self.reach], values[self.window, :, : self.reach]

    def _grown(self, buffer: Tensor, states: Tensor) -> Tensor:
        """Return the buffer, or a longer one of the same content where ``reach`` asks for it."""
        if buffer.numel() and buffer.shape[2] >= self.reach:
            return buffer
        _, heads, _, width = states.shape
        slots = self.reach if states.device.type == "cpu" else self.max_context + 1
        grown = states.new_zeros(len(self.lengths), heads, slots, width)
        if buffer.numel():
            grown[:, :, : buffer.shape[2]] = buffer
        return grown

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

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.lengths.max()) if len(self.lengths) else 0
