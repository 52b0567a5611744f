"""Angles of rotary embeddings: whether they depend on the rest of a pass, and a table of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding


def has_fixed_angles(rotary: Any) -> bool:
    """Return whether a position's angles are the same in every pass; with ``dynamic`` and
    ``longrope`` scaling a pass's longest position, padding included, changes those of all."""
    kind = str(getattr(rotary, "rope_type", ""))
    return "dynamic" not in kind and kind != "longrope"


class RotaryTable:
    """Cosines and sines of rotary embeddings at each position, concatenated, in the type of the
    model's states; the first half of the sines is negated, because they are multiplied with the
    exchanged halves of a head.

    They are looked up in a table, or computed for each block if angles depend on its longest
    position.
    """

    def __init__(
        self, rotary: Any, max_context: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.rotary, self.device, self.dtype = rotary, device, dtype
        positions = torch.arange(max_context, device=device)
        self.table = self._at(positions[None])[0] if has_fixed_angles(rotary) else None

    def _at(self, positions: Tensor) -> Tensor:
        like = torch.zeros(0, dtype=self.dtype, device=self.device)
        cos, sin = self.rotary(like, positions)
        first, second = sin.chunk(2, dim=-1)
        return torch.cat([cos, -first, second], dim=-1)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each (n, Q, 1, D)."""
        at = self._at(positions) if self.table is None else embedding(positions, self.table)
        cos, sin = at[:, :, None].chunk(2, dim=-1)
        return cos, sin
