"""States as arrays of numbers, for agents that read no text: boards as planes, choices as one-hot
rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]
"""A state as numbers from 0 to 1."""


def planes(masks: Sequence[int], size: int) -> Features:
    """Return sets of cells of a square board as planes of zeros and ones.

    Args:
        masks: Bit masks, cells counted row by row.
        size: Cells along one side.

    Returns:
        An array (mask, row, column).
    """
    num_bytes = -(-(size**2) // 8)
    raw = b"".join(mask.to_bytes(num_bytes, "little") for mask in masks)
    bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
    kept = bits.reshape(len(masks), 8 * num_bytes)[:, : size**2]
    return kept.reshape(len(masks), size, size).astype(np.float32)


def one_hot(choices: Sequence[int], num: int) -> Features:
    """Return choices, each from 0 to ``num`` - 1, as rows of an array (choice, ``num``)."""
    rows: Features = np.eye(num, dtype=np.float32)[list(choices)]
    return rows
