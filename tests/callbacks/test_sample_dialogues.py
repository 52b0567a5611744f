"""The filmstrip of a trajectory shows its known states, and a failing picture costs no run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from callbacks.sample_dialogues import draw_states
from ragen_pl.envs import boundary
from ragen_pl.envs.picture import CELL, Drawing
from tests.support.doubles import make_trajectory, make_turn
from tests.support.toy_env import Lamp


class Shown(Lamp):
    """Be one cell in the color that the state names."""

    def draw(self, state: Mapping[str, Any]) -> Drawing | None:
        return Drawing(1, 1, state["color"], ())


def played(*colors: Any) -> Any:
    """Make a trajectory through states of these colors; None is a state that was not kept."""
    *before, last = [None if color is None else {"color": color} for color in colors]
    turns = [replace(make_turn(), state=state) for state in before]
    return replace(make_trajectory(turns), final_state=last or {})


def test_the_known_states_are_shown_in_order() -> None:
    strip = draw_states(Shown(), played((1, 0, 0), None, (2, 0, 0), (3, 0, 0)))
    assert strip is not None
    gap = CELL // 4
    assert [strip[gap, gap + n * (CELL + gap), 0] for n in range(3)] == [1, 2, 3]
    assert strip.shape[1] == 3 * (CELL + gap) + gap


def test_without_pictures_or_states_there_is_no_strip() -> None:
    assert draw_states(Lamp(), played((1, 0, 0), (2, 0, 0))) is None
    assert draw_states(Shown(), played(None, None)) is None


@pytest.mark.parametrize("color", ["no color", (0, 0)])
def test_a_picture_that_fails_is_told_and_left_out(
    color: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trajectory = replace(played((1, 0, 0), (2, 0, 0)), final_state={"color": color})
    with patch.dict(boundary._COUNTS, clear=True):  # said the first time only
        assert draw_states(Shown(), trajectory) is None
    assert "environment lamp: draw raised" in caplog.text
