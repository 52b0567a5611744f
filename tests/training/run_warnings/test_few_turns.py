"""An environment that needs more turns than a trajectory has is named before the run."""

from __future__ import annotations

import pytest

from ragen_pl.envs import Sokoban
from ragen_pl.training.run_warnings.few_turns import few_turns_warning


@pytest.mark.parametrize(("turns", "each", "told"), [(5, 1, False), (4, 1, True), (2, 3, False)])
def test_less_than_half_of_the_actions_is_told(turns: int, each: int, told: bool) -> None:
    env = Sokoban()
    assert env.max_actions == 10
    warning = few_turns_warning(env, turns, each)
    assert (warning is not None) == told
    if warning is not None:
        assert "at most 4 of the 10 actions" in warning
