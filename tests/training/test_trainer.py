"""What loop and callbacks do with the trainer."""

from __future__ import annotations

import pytest
from lightning.pytorch import Trainer

from ragen_pl.errors import ConfigError
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import refuse_double_metrics


class Mine(RolloutCallback):
    """Records what another one records."""


def test_one_metric_of_two_callbacks_is_refused() -> None:
    """Lightning would log the mean of both under the name of either."""
    one, other = RolloutCallback(), Mine()
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[one, other]
    )
    one.record({"rollout/success": 0.1, "rollout/empty": float("nan")})
    other.record({"rollout/length": 3.0, "rollout/empty": 1.0})
    refuse_double_metrics(trainer)
    other.record({"rollout/success": 0.9})
    with pytest.raises(ConfigError, match=r"Mine records rollout/success, which RolloutCallback"):
        refuse_double_metrics(trainer)
