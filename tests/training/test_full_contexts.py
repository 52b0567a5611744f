"""Rollouts that the context ends are told once, with what to do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.memory import Compact, Memory, Window
from ragen_pl.training.full_contexts import FullContexts
from ragen_pl.types import StopReason, TrajectoryGroup
from tests.support.doubles import make_group

TRAINER = cast(Any, SimpleNamespace(is_global_zero=True, progress_bar_callback=None))


def rollout(full: int, others: int) -> TrajectoryGroup:
    group = make_group([0.0] * (full + others))
    ends = [StopReason.CONTEXT_FULL] * full + [StopReason.MAX_TURNS] * others
    played = zip(group.trajectories, ends, strict=True)
    return replace(group, trajectories=tuple(replace(t, stop_reason=end) for t, end in played))


def test_more_than_half_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    full = FullContexts(RolloutConfig(max_context=300))
    full.take_note(TRAINER, [rollout(1, 1)], 3)
    assert capsys.readouterr().out == ""
    full.take_note(TRAINER, [rollout(3, 1), rollout(0, 1)], 4)
    told = capsys.readouterr().out
    assert told.startswith(
        "warning: 3 of 5 trajectories of iteration 5 ended as context_full: their next turn had no "
        "room in data.rollout.max_context, 300 tokens."
    )
    assert "data.rollout.memory: Window" in told
    full.take_note(TRAINER, [rollout(4, 0)], 5)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("memory", "key"),
    [(Compact(budget=200), "memory.budget, 200 tokens"), (Window(2), "max_context, 300 tokens")],
)
def test_the_limit_is_named_where_it_is_set(
    memory: Memory, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RolloutConfig(max_context=300, memory=memory)
    FullContexts(config).take_note(TRAINER, [rollout(2, 0)], 0)
    told = capsys.readouterr().out
    assert f"data.rollout.{key}" in told
    assert "let a memory cut" not in told
