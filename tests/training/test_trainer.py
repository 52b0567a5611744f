"""What loop and callbacks do with the trainer."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import Trainer

from ragen_pl.errors import ConfigError
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import ends_after_this, refuse_double_metrics


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


@pytest.mark.parametrize(
    ("limits", "stops", "ends"),
    [
        ({"max_epochs": 5}, False, True),
        ({"max_epochs": 6}, False, False),
        ({"max_epochs": -1}, False, False),
        ({"max_epochs": -1, "max_steps": 9}, False, True),
        ({"max_epochs": -1, "max_steps": 10}, False, False),
        ({"max_epochs": 9, "min_epochs": 5}, True, True),
        ({"max_epochs": 9, "min_epochs": 6}, True, False),
        ({"max_epochs": 9, "min_steps": 10}, True, False),
    ],
)
def test_a_run_ends_where_lightning_ends_it(
    limits: dict[str, Any], stops: bool, ends: bool
) -> None:
    """At the end of the fifth iteration, after nine optimizer steps."""
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **limits)
    trainer.should_stop = stops
    progress: Any = trainer.fit_loop.epoch_progress.current
    progress.completed, progress.processed = 4, 5
    steps = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
    steps.total.completed = 9
    assert trainer.global_step == 9
    assert ends_after_this(trainer) is ends
    assert trainer.fit_loop.done is ends
