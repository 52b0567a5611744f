"""Draw Sokoban."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ragen_pl.envs.base import Picture


def draw_room_state(state: Mapping[str, Any]) -> Picture:
    """Draw a room."""
    return np.zeros((state["size"] * 28, state["size"] * 28, 3), np.uint8)
