"""Lightning's own callbacks act at the end of iterations, on what those measured."""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch import callbacks as lightning

from callbacks import RolloutMetrics
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.training.callback_checks.fitted_callbacks import fit_to_iterations
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.trainer import all_callbacks
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner

ROLLOUT = RolloutConfig(
    num_groups=2,
    group_size=2,
    max_turns=2,
    max_actions_per_turn=1,
    max_response_tokens=10,
    max_context=128,
)
WARM_START = WarmStart(iterations=2, demonstrations=8, batch_size=4, updates_per_iteration=2)


class SetDown(NamedLamp):
    """A lamp that is out of reach during one validation."""

    is_down = False

    def reset(self, *args: Any, **options: Any) -> Any:
        if SetDown.is_down:
            raise RuntimeError("no lamp here")
        return super().reset(*args, **options)


class TakesDown(lightning.Callback):
    """Puts the evaluation's lamp out of reach for the second validation."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        SetDown.is_down = trainer.current_epoch == 1


def fit(folder: Path, callback: lightning.Callback, every: int, env: TextEnv) -> Trainer:
    """Train six iterations, two of them a warm start, with validations every so often."""
    data = RolloutDataModule(
        env=NamedLamp(),
        eval_sets={"default": env},
        prompts=PROMPTS,
        evaluation=EvaluationConfig(size=4),
        rollout=ROLLOUT,
        warm_start=WARM_START,
    )
    trainer = make_trainer(
        folder,
        6,
        [RolloutMetrics(), TakesDown(), callback],
        enable_checkpointing=True,
        check_val_every_n_epoch=every,
    )
    trainer.fit(make_learner(), datamodule=data)
    return trainer


def saved(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.ckpt"))


@pytest.mark.parametrize(
    "callback",
    [
        lightning.ModelCheckpoint(save_on_train_epoch_end=False),
        lightning.ModelCheckpoint(every_n_train_steps=1),
        lightning.ModelCheckpoint(
            train_time_interval=timedelta(hours=1), save_on_train_epoch_end=True
        ),
        lightning.ModelCheckpoint(save_on_exception=True, save_on_train_epoch_end=True),
        lightning.EarlyStopping("rollout/success", check_on_train_epoch_end=False),
    ],
)
def test_what_acts_within_an_iteration_is_refused(callback: lightning.Callback) -> None:
    with pytest.raises(ConfigError, match="leave"):
        fit_to_iterations(callback, ())


def test_a_checkpoint_is_saved_at_the_end_of_an_iteration() -> None:
    """Of itself it would be at the validation before, where Lightning validates seldom."""
    callback = lightning.ModelCheckpoint()
    seldom = Trainer(accelerator="cpu", logger=False, check_val_every_n_epoch=25)
    assert not callback._should_save_on_train_epoch_end(seldom)
    fit_to_iterations(callback, ())
    assert callback._should_save_on_train_epoch_end(seldom)


def test_time_that_is_over_ends_the_run_after_the_iteration() -> None:
    """A run that stopped between two updates would count the iteration as done without the rest of
    them."""
    timed: Any = Trainer(accelerator="cpu", logger=False, max_time=timedelta(seconds=0))
    timers = [c for c in all_callbacks(timed) if isinstance(c, lightning.Timer)]
    for timer in timers:
        fit_to_iterations(timer, ())
        timer.on_train_batch_end(timed)
    assert not timed.should_stop
    for timer in timers:
        timer.on_train_epoch_end(timed)
    assert timed.should_stop


def test_the_best_checkpoints_are_those_of_validated_iterations(tmp_path: Path) -> None:
    """Lightning keeps a validation's value until the next one, and would save each iteration that
    follows as if it had it."""
    best = lightning.ModelCheckpoint(
        tmp_path, "{epoch}", "val/default/success", mode="max", save_top_k=-1
    )
    fit(tmp_path, best, 3, NamedLamp())
    assert saved(tmp_path) == ["epoch=2", "epoch=5"]


def test_a_metric_of_rl_is_looked_at_in_iterations_of_rl(tmp_path: Path) -> None:
    """The warm start has none, where Lightning ends the run."""
    every = lightning.ModelCheckpoint(
        tmp_path, "{epoch}", "rollout/success", mode="max", save_top_k=-1
    )
    fit(tmp_path, every, 1, NamedLamp())
    assert saved(tmp_path) == ["epoch=2", "epoch=3", "epoch=4", "epoch=5"]


def test_early_stopping_waits_for_measured_iterations_alone(tmp_path: Path) -> None:
    """Two RL iterations without the infinite gain that is asked for: the third of RL ends it."""
    stopping = lightning.EarlyStopping("rollout/success", min_delta=10.0, patience=2, mode="max")
    trainer = fit(tmp_path, stopping, 1, NamedLamp())
    assert trainer.current_epoch == WARM_START.iterations + 3


@pytest.mark.parametrize(
    "callback",
    [
        lightning.EarlyStopping("val/default/success", patience=9, mode="max"),
        lightning.ModelCheckpoint(None, "{epoch}", "val/default/success", save_top_k=-1),
    ],
)
def test_a_validation_without_a_result_is_left_out(
    tmp_path: Path, callback: lightning.Callback
) -> None:
    """The environment fails in every trajectory of the second of them."""
    if isinstance(callback, lightning.ModelCheckpoint):
        callback.dirpath = str(tmp_path)
    trainer = fit(tmp_path, callback, 1, SetDown())
    assert trainer.current_epoch == 6
    if isinstance(callback, lightning.ModelCheckpoint):
        assert saved(tmp_path) == ["epoch=0", "epoch=2", "epoch=3", "epoch=4", "epoch=5"]


@pytest.mark.parametrize(
    ("monitor", "every"), [("val/default/sucess", 1), ("val/default/sucess", 7), ("val/success", 7)]
)
def test_a_misspelled_metric_is_told_once(tmp_path: Path, monitor: str, every: int) -> None:
    """At the end of a run at the latest, where nothing was validated before."""
    callback = lightning.ModelCheckpoint(tmp_path, monitor=monitor)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        fit(tmp_path, callback, every, NamedLamp())
    told = [str(each.message) for each in raised if f"monitors {monitor}" in str(each.message)]
    assert len(told) == 1
    measured = told[0].partition("Measured were")[2]
    assert ("val/default/success" if every == 1 else "rollout/success") in measured
    assert saved(tmp_path) == []


def test_an_evaluation_set_that_a_run_does_not_have_is_refused() -> None:
    callback = lightning.EarlyStopping("val/defualt/success")
    with pytest.raises(
        ConfigError, match=r"no evaluation set defualt: monitor val/default/success"
    ):
        fit_to_iterations(callback, ("default", "reference"))
    for known in ("val/reference/success", "val/mine", "rollout/success"):
        fit_to_iterations(lightning.EarlyStopping(known), ("default", "reference"))
