"""Evaluation results over all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.training.evaluation.results import summarize_all_ranks
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_group, make_trainer


def on_two_ranks(other: list[TrajectoryGroup], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ragen_pl.training.evaluation.results.gather_objects", lambda own: [own, other]
    )


def test_shares_of_two_ranks_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = [make_group([1.0], group_id=0), make_group([0.0], group_id=1)]
    on_two_ranks([make_group([1.0], group_id=2), make_group([0.0], group_id=1)], monkeypatch)
    result = summarize_all_ranks(make_trainer(tmp_path, 1, []), "final on easy", share)
    assert result is not None
    assert (result.count, result.success) == (3, 2 / 3)


def test_there_is_no_result_where_the_environment_failed_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, trainer = make_group([1.0], broken=[0]), make_trainer(tmp_path, 1, [])
    on_two_ranks([make_group([1.0], group_id=2)], monkeypatch)
    assert summarize_all_ranks(trainer, "final on easy", [broken]) is not None
    assert not capsys.readouterr().out
    on_two_ranks([broken], monkeypatch)
    assert summarize_all_ranks(trainer, "final on easy", [broken]) is None
    assert (
        "final on easy: no result, the environment failed in every trajectory"
        in capsys.readouterr().out
    )
