"""The collector: what callbacks select, together, and what is no selection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.collector import Collector
from ragen_pl.training.dynamic_sampling import CollectedGroups
from ragen_pl.types import Selection, TrajectoryGroup
from tests.support.doubles import make_group


class Chooser(RolloutCallback):
    """Give each group a weight, with or without saying why, and note what is decided."""

    def __init__(self, weight: float, reason: str = "") -> None:
        super().__init__()
        self.weight, self.reason_given = weight, reason
        self.decided: Selection | None = None

    def on_rollout_end(self, trainer: Any, module: Any, groups: list[TrajectoryGroup]) -> Selection:
        weights = tuple((self.weight,) * len(group.trajectories) for group in groups)
        return Selection(weights, (self.reason_given,) * len(groups) if self.reason_given else ())

    def on_selection(
        self, trainer: Any, module: Any, groups: list[TrajectoryGroup], selection: Selection
    ) -> None:
        self.decided = selection


def test_every_callback_is_told_what_all_decided_and_why() -> None:
    choosers = [Chooser(0.5, "kept: half"), Chooser(2.0), Chooser(3.0, "kept: more")]
    trainer: Any = SimpleNamespace(callbacks=choosers, lightning_module=None)
    nothing: Any = None
    collector = Collector(trainer, nothing)
    groups = [make_group([0.0, 1.0], group_id=0), make_group([1.0, 1.0], group_id=1)]
    weights = collector.policy_weights(CollectedGroups(groups, [True, False]))
    assert weights == [[3.0, 3.0], [0.0, 0.0]]
    for chooser in choosers:
        assert chooser.decided is not None
        assert chooser.decided.weights == ((3.0, 3.0), (0.0, 0.0))
        first, second = chooser.decided.reasons
        assert first == "kept: half; kept: more"
        assert second.startswith("dropped: all members have the same return, and dynamic")


class Wrong(RolloutCallback):
    """Return anything as the selection."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = given

    def on_rollout_end(self, trainer: Any, module: Any, groups: list[TrajectoryGroup]) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([1.0, 0.0], "a list of 2\n  it must return a Selection"),
        (Selection(((1.0, 1.0),)), "weights of 1 groups\n"),
        (Selection(((1.0, 1.0), (1.0,))), "a tuple of 1 as the weights of group 1\n"),
        (Selection((1.0, 1.0)), "as the weights of group 0\n"),  # type: ignore[arg-type]
        (Selection(((1.0, 1.0), (1.0, -1.0))), "-1.0 as a weight of group 1\n"),
        (Selection(((1.0, float("nan")), (1.0, 1.0))), "nan as a weight of group 0\n"),
        (Selection(((1.0, 1.0), (1.0, 1.0)), ("kept",)), "1 reasons\n"),
    ],
)
def test_a_callback_that_returns_no_selection_of_the_groups_is_named(given: Any, told: str) -> None:
    trainer: Any = SimpleNamespace(callbacks=[Wrong(given)], lightning_module=None)
    nothing: Any = None
    collector = Collector(trainer, nothing)
    groups = [make_group([0.0, 1.0], group_id=0), make_group([1.0, 1.0], group_id=1)]
    with pytest.raises(ConfigError, match=rf"^{__name__}.Wrong.on_rollout_end returned ") as caught:
        collector.policy_weights(CollectedGroups(groups, [True, True]))
    assert told in str(caught.value)
