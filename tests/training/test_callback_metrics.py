"""What callbacks record."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from ragen_pl.errors import ConfigError
from ragen_pl.training.callback import RolloutCallback


class Mine(RolloutCallback):
    """A callback that records."""


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"rollout/x": "high"}, r"Mine\.record was given 'high' for rollout/x: give a number"),
        ({"rollout/x": None}, r"None for rollout/x"),
        ({"rollout/x": torch.ones(2)}, r"tensor\(\[1\., 1\.\]\) for rollout/x"),
        ({3: 1.0}, r"a metric named 3: give it another name"),
        ({"phase": 1.0}, r"a metric named 'phase'"),
        ({"step": 1.0}, r"a metric named 'step'"),
        ([("rollout/x", 1.0)], r"give a dict of numbers"),
    ],
)
def test_what_is_no_number_is_refused(metrics: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Mine().record(metrics)


def test_numbers_of_any_kind_are_recorded() -> None:
    mine = Mine()
    given: Any = {"a": np.float32(0.5), "b": torch.tensor([2]), "c": True, "d": Fraction(1, 4)}
    mine.record(given)
    assert mine.recorded == {"a": 0.5, "b": 2.0, "c": 1.0, "d": 0.25}


def test_a_callback_that_forgets_its_parents_constructor_records() -> None:
    class Forgetful(RolloutCallback):
        def __init__(self, every: int) -> None:
            self.every = every

    one, other = Forgetful(2), Forgetful(3)
    one.record({"rollout/every": one.every})
    assert list(one.recorded) == ["rollout/every"]
    assert list(other.recorded) == [], "each has its own"
