"""Rollouts in which the environment failed throughout, counted in a row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.training.lost_rollouts import LostRollouts
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_group
from tests.support.toy_env import NamedLamp

TRAINER = cast(Any, SimpleNamespace(is_global_zero=True, progress_bar_callback=None))
SOUND, BROKEN = make_group([1.0, 0.0], broken=[0]), make_group([0.0, 0.0], broken=[0, 1])


def is_lost(lost: LostRollouts, group: TrajectoryGroup) -> bool:
    return lost.is_lost(TRAINER, [group], [NamedLamp()])


def test_an_environment_that_never_worked_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"lamp failed in every one of 2 .*\n.*\n  mend the env"):
        is_lost(LostRollouts(), BROKEN)


def test_one_that_worked_may_fail_twice_in_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    lost = LostRollouts()
    told = [is_lost(lost, group) for group in (SOUND, BROKEN, BROKEN, SOUND, BROKEN, BROKEN)]
    assert told == [False, True, True, False, True, True]
    assert capsys.readouterr().out.count("no update in this iteration") == 4
    with pytest.raises(ConfigError, match="if a checkpoint was saved, --ckpt_path last"):
        is_lost(lost, BROKEN)
