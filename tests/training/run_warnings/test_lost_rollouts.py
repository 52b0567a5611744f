"""Rollouts in which the environment failed throughout, counted in a row."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.training.run_warnings import lost_rollouts
from ragen_pl.training.run_warnings.lost_rollouts import LostRollouts
from ragen_pl.types import StopReason, TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory
from tests.support.ranks import on_ranks
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


def lost_to(reason: StopReason, *errors: str) -> TrajectoryGroup:
    """A group whose members all ended before their first turn."""
    one = make_trajectory([], stop_reason=reason)
    return TrajectoryGroup(0, 0, tuple(replace(one, error=error) for error in errors))


AWAY = lost_to(StopReason.ENV_ERROR, "reset raised OSError: away", "reset raised OSError: gone")
NO_ROOM = lost_to(StopReason.CONTEXT_FULL, *["rollout.max_context is 8"] * 2)


def check(ranks: list[list[TrajectoryGroup]], monkeypatch: pytest.MonkeyPatch) -> None:
    def one(rank: int) -> bool:
        return LostRollouts().is_lost(TRAINER, ranks[rank], [NamedLamp()])

    assert not any(on_ranks(len(ranks), one, monkeypatch, lost_rollouts))


def test_one_trajectory_on_any_rank_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check([[AWAY], [NO_ROOM, make_group([1.0])]], monkeypatch)
    check([[AWAY], [make_group([1.0, 0.0], broken=[0])], []], monkeypatch)


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([[AWAY], [AWAY]], "^environment lamp failed in every one of 4 .*\n.*example: .*: away\n"),
        ([[NO_ROOM], []], "^rollout.max_context is 8$"),
        ([[NO_ROOM], [AWAY]], "lamp failed in every one of 4 .*\n.*OSError: away"),
        ([[AWAY, NO_ROOM], []], "lamp failed in every one of 4 .*\n.*OSError: away"),
    ],
)
def test_none_on_any_rank_is_an_error(
    ranks: list[list[TrajectoryGroup]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=told):
        check(ranks, monkeypatch)
