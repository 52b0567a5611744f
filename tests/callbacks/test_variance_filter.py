"""The filter keeps the groups with the widest spread and logs what it saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from lightning.pytorch import Trainer

from callbacks import VarianceFilter
from callbacks import variance_filter as implementation
from ragen_pl.rollout_stats import group_scores
from ragen_pl.types import TrajectoryGroup
from tests.doubles import TinyModule, make_group, one_batch

GROUPS = [
    make_group([0.0, 0.0, 0.0], group_id=0),
    make_group([0.0, 1.0, 5.0], group_id=1),
    make_group([0.0, 1.0, 1.0], group_id=2),
    make_group([0.0, 9.0, 1.0], group_id=3, broken=[1]),
]
NO_TRAINER = cast(Any, None)


def select(callback: VarianceFilter, groups: list[TrajectoryGroup]) -> list[list[float]]:
    return [list(w) for w in callback.on_rollout_end(NO_TRAINER, NO_TRAINER, groups).weights]


def test_keeps_the_widest_groups_without_broken_members() -> None:
    assert select(VarianceFilter(0.25), GROUPS) == [[0] * 3, [1] * 3, [0] * 3, [0] * 3]
    assert select(VarianceFilter(0.5), GROUPS)[3] == [1, 0, 1]
    assert select(VarianceFilter(1.0), GROUPS) == [[1] * 3, [1] * 3, [1] * 3, [1, 0, 1]]


def test_two_ranks_choose_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = [[GROUPS[0], GROUPS[2]], [GROUPS[1], GROUPS[3]]]
    tables = [[(g.group_id, s) for g, s in zip(h, group_scores(h), strict=True)] for h in halves]
    monkeypatch.setattr(implementation, "gather_objects", lambda own: tables)
    chosen = {}
    for rank, half in enumerate(halves):
        monkeypatch.setattr(implementation, "rank", lambda rank=rank: rank)
        for group, weights in zip(half, select(VarianceFilter(0.5), half), strict=True):
            chosen[group.group_id] = weights
    monkeypatch.undo()
    assert [chosen[i] for i in range(4)] == select(VarianceFilter(0.5), GROUPS)


def test_metrics_reach_callback_metrics() -> None:
    callback = VarianceFilter(0.5)
    select(callback, GROUPS)
    trainer = fit_once(callback)
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
    assert metrics["rollout/kept_fraction"] == 0.5
    assert metrics["rollout/zero_std_share"] == 0.25
    assert metrics["rollout/in_group_std_kept"] > metrics["rollout/in_group_std"] > 0


def test_an_epoch_without_batches_still_shows_its_metrics() -> None:
    callback = VarianceFilter(0.5)
    select(callback, GROUPS)
    trainer = SimpleNamespace(loggers=[], callback_metrics={}, global_step=0)
    callback.on_train_epoch_end(cast(Any, trainer), NO_TRAINER)
    assert float(trainer.callback_metrics["rollout/kept_fraction"]) == 0.5


@pytest.mark.parametrize("keep_fraction", [0.0, 1.2])
def test_a_bad_fraction_is_refused(keep_fraction: float) -> None:
    with pytest.raises(ValueError, match="keep_fraction is"):
        VarianceFilter(keep_fraction)


def test_groups_of_one_are_refused_before_training() -> None:
    trainer = cast(
        Any, SimpleNamespace(datamodule=SimpleNamespace(rollout=SimpleNamespace(group_size=1)))
    )
    with pytest.raises(ValueError, match=r"rollout.group_size is 1.*2 or more"):
        VarianceFilter().setup(trainer, NO_TRAINER, "fit")
    VarianceFilter(1.0).setup(trainer, NO_TRAINER, "fit")


def fit_once(*callbacks: Any) -> Trainer:
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TinyModule(), one_batch())
    return trainer
