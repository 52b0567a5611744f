"""Keep keys and values of rows of unequal length in one buffer per layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache


class RaggedCache(Cache):
    """A transformers cache in which every row has its own length.

    Each forward writes one block: row r's new tokens, left-padded, land behind its own last one;
    padding lands in a spare slot that nothing looks at. Buffers grow by doubling.

    Args:
        rows: Number of rows.
        max_context: Upper bound of a row's length.
    """

    def __init__(self, rows: int, max_context: int) -> None:
        super().__init__(layers=[])
        self.width = rows
        """Rows computed; those behind it rest."""
        self.lengths = torch.zeros(rows, dtype=torch.long)
        self.max_context = max_context
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.slots = torch.zeros(0, 0, dtype=torch.long)
        self.reach = 0

    def open_block(self, width: int, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Plan one block of ``width`` columns with ``counts`` real tokens per row, left-padded.

        Returns:
            Position ids (rows, width) and the bool mask (rows, 1, width, reach).
        """
        lengths = self.lengths[: self.width]
        column = torch.arange(width)[None] - (width - counts)[:, None]
        real = column >= 0
        positions = torch.where(real, lengths[:, None] + column, torch.zeros_like(column))
        # Slot 0 is the spare one; token p of a row lies in slot p + 1.
        self.slots = torch.where(real, positions + 1, torch.zeros_like(positions))
        self.reach = int((lengths + counts).max()) + 1
        slot = torch.arange(self.reach)[None, None]
        mask = torch.where(
            real[:, :, None], (slot >= 1) & (slot <= self.slots[:, :, None]), slot == 0
        )
        return positions, mask[:, None]

    def close_block(self, counts: Tensor) -> None:
        """Count the block's tokens as read."""
        self.lengths[: self.width] += counts

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the block's keys and values; return all that the mask may show."""
        if layer_idx == len(self.keys):
            self.keys.append(self._buffer(key_states, 0))
            self.values.append(self._buffer(value_states, 0))
        if self.keys[layer_idx].shape[2] < self.reach:
            for buffers, states in ((self.keys, key_states), (self.values, value_states)):
                old = buffers[layer_idx]
                buffers[layer_idx] = self._buffer(states, old.shape[2])
                buffers[layer_idx][:, :, : old.shape[2]] = old
        rows = torch.arange(self.width, device=key_states.device)[:, None]
        slots = self.slots.to(key_states.device)
        for buffer, states in (
            (self.keys[layer_idx], key_states),
            (self.values[layer_idx], value_states),
        ):
            buffer.transpose(1, 2)[rows, slots] = states.transpose(1, 2)
        return (
            self.keys[layer_idx][: self.width, :, : self.reach],
            self.values[layer_idx][: self.width, :, : self.reach],
        )

    def _buffer(self, states: Tensor, old: int) -> Tensor:
        size = min(max(64, 2 * old, self.reach + 32), self.max_context + 1)
        heads, width = states.shape[1], states.shape[3]
        return states.new_zeros(len(self.lengths), heads, max(size, self.reach), width)

    def reorder(self, index: Tensor) -> None:
        """Keep the rows at ``index``, in that order."""
        self.lengths = self.lengths[index]
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                buffers[layer] = buffer[index.to(buffer.device)]
        self.width = len(index)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.lengths.max()) if len(self.lengths) else 0
