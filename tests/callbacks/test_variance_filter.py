"""The filter keeps the groups with the widest spread and logs what it saw."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lightning.pytorch import Trainer

from callbacks import VarianceFilter
from ragen_pl.algorithms.filters import (
    FilterRule,
    MinP,
    PercentileBand,
    SoftmaxTopP,
    SoftWeights,
    TopFraction,
    TopK,
    TopP,
)
from ragen_pl.rollout import group_table
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import TinyModule, make_group, make_trajectory, make_turn, one_batch
from tests.support.ranks import on_ranks

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


def reasons(callback: VarianceFilter) -> list[str]:
    return list(callback.on_rollout_end(NO_TRAINER, NO_TRAINER, GROUPS).reasons)


def test_reasons_name_score_rank_and_rule() -> None:
    assert reasons(VarianceFilter(0.5)) == [
        "dropped: all members have the same return",
        "kept: standard deviation 2.65, rank 1 of 3; TopFraction(fraction 0.5) keeps 2 groups",
        "dropped: standard deviation 0.577, rank 3 of 3; TopFraction(fraction 0.5) keeps 2 groups",
        "kept: standard deviation 0.707, rank 2 of 3; TopFraction(fraction 0.5) keeps 2 groups",
    ]
    assert reasons(VarianceFilter(1.0))[0] == "kept: every group is"
    fewest = reasons(VarianceFilter(None, rule=TopFraction(0.5, "smallest")))[1:]
    told = [re.match(r"(\w+): .* (rank \d)", each) for each in fewest]
    assert [match and match.groups() for match in told] == [
        *(("dropped", "rank 3"), ("kept", "rank 1"), ("kept", "rank 2"))
    ]
    soft = reasons(VarianceFilter(None, rule=SoftWeights(), score="length"))
    assert soft[1].startswith("kept: mean tokens 2, rank 1 of 3; SoftWeights(power 1.0) keeps 3")
    with_zero = VarianceFilter(0.25, include_zero=True, rule=None)
    assert reasons(with_zero)[0].startswith("dropped: standard deviation 0, rank 4 of 4; Top")
    weighted = VarianceFilter(None, rule=SoftWeights())
    assert reasons(weighted)[1].startswith("kept with weight 2.02: standard deviation 2.65")


def test_a_group_without_survivors_says_so() -> None:
    groups = [make_group([1.0, 2.0], group_id=0, broken=[0, 1]), make_group([1.0, 2.0], group_id=1)]
    found = VarianceFilter(0.5).on_rollout_end(NO_TRAINER, NO_TRAINER, groups).reasons
    assert found[0] == "dropped: the environment failed in every member"
    groups[0] = make_group([1.0, 2.0], group_id=0, broken=[1])
    for include_zero in (False, True):
        callback = VarianceFilter(0.5, include_zero)
        found = callback.on_rollout_end(NO_TRAINER, NO_TRAINER, groups).reasons
        assert found[0] == "dropped: the environment failed in all members but one"


def test_two_ranks_choose_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = [[GROUPS[2], GROUPS[0]], [GROUPS[3], GROUPS[1]]]

    def work(rank: int) -> list[list[float]]:
        return select(VarianceFilter(0.5, keep_per_group=2), halves[rank])

    chosen = {
        group.group_id: weights
        for half, rows in zip(halves, on_ranks(2, work, monkeypatch, group_table), strict=True)
        for group, weights in zip(half, rows, strict=True)
    }
    alone = select(VarianceFilter(0.5, keep_per_group=2), GROUPS)
    assert [chosen[i] for i in range(4)] == alone


def group(
    returns: Sequence[float], group_id: int, length: int = 2, entropy: float = 0.5
) -> TrajectoryGroup:
    """Make a group whose responses have this length and this entropy per token."""
    members = tuple(
        make_trajectory(
            [make_turn(value, entropies=(entropy,) * length)], group_id=group_id, member=member
        )
        for member, value in enumerate(returns)
    )
    return TrajectoryGroup(group_id, group_id, members)


# Each score ranks these otherwise: by std 3, 2, 1, 0; mean 0, 3, 2, 1; length 1 …; entropy 2 …
VARIED = [
    group([9.0, 9.0, 9.0], 0, length=3, entropy=0.2),
    group([0.0, 0.5, 0.0], 1, length=9, entropy=0.4),
    group([0.0, 1.0, 1.5], 2, length=4, entropy=0.9),
    group([0.0, 8.0, 1.0], 3, length=2, entropy=0.3),
]


def kept(groups: list[TrajectoryGroup], **keys: Any) -> list[int]:
    """Name the groups that keep a weight."""
    return [g for g, row in enumerate(select(VarianceFilter(**keys), groups)) if any(row)]


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        ({}, [3]),
        ({"keep_fraction": 0.5}, [2, 3]),
        ({"keep_fraction": 1.0}, [0, 1, 2, 3]),
        ({"keep_fraction": None, "rule": TopFraction(0.5)}, [2, 3]),
        ({"keep_fraction": None, "rule": TopFraction(0.25, "smallest")}, [1]),
        (
            {
                "keep_fraction": None,
                "rule": TopFraction(0.25, "smallest"),
                "include_zero": True,
            },
            [0],
        ),
        ({"keep_fraction": None, "rule": TopK(3)}, [1, 2, 3]),
        # Stds 4.36, 0.76, 0.29: 5.41 in all; variances 19, 0.58, 0.08.
        ({"keep_fraction": None, "rule": TopP(0.9)}, [2, 3]),
        ({"keep_fraction": None, "rule": TopP(0.9), "score": "variance"}, [3]),
        ({"keep_fraction": None, "rule": SoftmaxTopP(0.9, 0.2)}, [3]),
        ({"keep_fraction": None, "rule": SoftmaxTopP(0.99, 0.2)}, [2, 3]),
        ({"keep_fraction": None, "rule": SoftmaxTopP(0.9, 5.0)}, [1, 2, 3]),
        ({"keep_fraction": None, "rule": MinP(0.1)}, [2, 3]),
        ({"keep_fraction": None, "rule": MinP(0.01)}, [1, 2, 3]),
        ({"keep_fraction": None, "rule": PercentileBand(0.34, 0.7)}, [2]),
        ({"keep_fraction": None, "rule": SoftWeights()}, [1, 2, 3]),
        ({"score": "mean"}, [3]),
        ({"score": "mean", "include_zero": True}, [0]),
        ({"score": "length"}, [1]),
        ({"score": "entropy"}, [2]),
        ({"keep_fraction": 0.75}, [1, 2, 3]),
    ],
)
def test_every_key_changes_what_is_kept(keys: dict[str, Any], groups: list[int]) -> None:
    assert kept(VARIED, **keys) == groups


def test_soft_weights_follow_the_spread() -> None:
    rows = select(VarianceFilter(None, rule=SoftWeights()), VARIED)
    by_group = [row[0] for row in rows]
    assert by_group[0] == 0.0
    assert sum(by_group[1:]) / 3 == pytest.approx(1.0)
    assert by_group[3] / by_group[2] == pytest.approx(math.sqrt(57 / 1.75), rel=1e-6)
    squared = [row[0] for row in select(VarianceFilter(None, rule=SoftWeights(2.0)), VARIED)]
    assert squared[3] / squared[2] == pytest.approx(57 / 1.75, rel=1e-6)


def test_members_are_the_most_varied_survivors() -> None:
    assert select(VarianceFilter(0.5, keep_per_group=2), VARIED)[2:] == [[1, 0, 1], [1, 1, 0]]
    assert select(VarianceFilter(1.0, keep_per_group=2), GROUPS)[3] == [1, 0, 1]


@pytest.mark.parametrize(
    ("scaling", "factor"), [("none", 1.0), ("linear", 0.5), ("sqrt", math.sqrt(0.5))]
)
def test_the_loss_is_scaled_by_the_share_of_groups_kept(scaling: Any, factor: float) -> None:
    rows = select(VarianceFilter(0.5, loss_scaling=scaling), VARIED)
    assert rows[3] == pytest.approx([factor] * 3)
    assert select(VarianceFilter(1.0, loss_scaling=scaling), VARIED)[3] == [1.0] * 3


def test_groups_of_unequal_size_keep_their_places() -> None:
    ragged = [group([0.0, 1.0], 0), group([0.0, 1.0, 5.0, 5.0], 1)]
    assert select(VarianceFilter(1.0), ragged) == [[1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"rule": TopP()}, "keep_fraction is 0.25 beside the rule TopP.*null"),
        ({"keep_fraction": None}, "keep_fraction is null and there is no rule"),
        ({"keep_per_group": 1}, "keep_per_group is 1"),
        ({"keep_fraction": None, "rule": MinP(), "score": "mean"}, "score is mean.*MinP"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        VarianceFilter(**keys)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopFraction(0.0),
        lambda: TopK(0),
        lambda: TopP(1.5),
        lambda: SoftmaxTopP(temperature=0.0),
        lambda: MinP(0.0),
        lambda: PercentileBand(0.5, 0.5),
        lambda: SoftWeights(-1.0),
    ],
)
def test_bad_rules_are_refused_where_they_are_made(make: Callable[[], FilterRule]) -> None:
    with pytest.raises(ValueError, match=" is "):
        make()


def test_metrics_reach_callback_metrics() -> None:
    callback = VarianceFilter(0.5)
    select(callback, GROUPS)
    trainer = fit_once(callback)
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
    assert metrics["rollout/kept_fraction"] == 0.5
    assert metrics["rollout/ess_fraction"] == pytest.approx(5 / 12)  # one member is broken
    assert metrics["rollout/zero_std_fraction"] == 0.25
    assert metrics["rollout/in_group_std_kept"] > metrics["rollout/in_group_std"] > 0


def test_unequal_weights_are_worth_fewer_trajectories() -> None:
    callback = VarianceFilter(None, rule=SoftWeights())
    one, other = group([0.0, 1.0], 0), group([0.0, 3.0], 1)
    select(callback, [one, other])
    # Weights 0.5 and 1.5: (2 · 2)² / (4 · (0.5 + 4.5)).
    assert callback.recorded["rollout/ess_fraction"] == pytest.approx(0.8)
    assert callback.recorded["rollout/kept_fraction"] == 1.0


def test_nothing_kept_is_recorded_as_such() -> None:
    callback = VarianceFilter()
    assert select(callback, [group([1.0, 1.0], 0)]) == [[0.0, 0.0]]
    assert callback.recorded["rollout/kept_fraction"] == 0.0
    assert callback.recorded["rollout/ess_fraction"] == 0.0
    assert "rollout/in_group_std_kept" not in callback.recorded  # there is nothing to average


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


def check(callback: VarianceFilter, group_size: int) -> None:
    callback.check_run(NO_TRAINER, RolloutConfig(group_size=group_size))


def test_groups_of_one_are_refused_before_training() -> None:
    with pytest.raises(ValueError, match=r"rollout.group_size is 1.*2 or more"):
        check(VarianceFilter(), 1)
    check(VarianceFilter(1.0), 1)
    check(VarianceFilter(0.5, include_zero=True, score="length"), 1)


def test_keeping_all_members_by_number_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="keep_per_group is 4, but groups have 4"):
        check(VarianceFilter(keep_per_group=4), 4)
    check(VarianceFilter(keep_per_group=3), 4)


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


def test_a_filter_that_keeps_nothing_says_so_after_three_rollouts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else a whole run would train nothing, and end as any other."""
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    callback, alike = VarianceFilter(0.5), [make_group([1.0, 1.0], group_id=0)]
    for groups in (alike, alike, GROUPS, alike, alike):
        callback.on_rollout_end(trainer, NO_TRAINER, groups)
    assert "kept no group" not in capsys.readouterr().out
    for _ in range(3):
        callback.on_rollout_end(trainer, NO_TRAINER, alike)
    assert capsys.readouterr().out.count("has kept no group of 3 rollouts in a row") == 1
