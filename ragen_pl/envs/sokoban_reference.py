"""Draw Sokoban rooms as the reference does, by reverse play."""

from __future__ import annotations

from ragen_pl.envs.sokoban_rooms import Room


def draw_reference_room(seed: int, size: int, num_boxes: int) -> Room:
    """Draw the room of a seed."""
    raise NotImplementedError(f"reference room {seed} {size} {num_boxes}")
