"""Callbacks of one's own: wrong hooks are refused, and what a hook raises has its name."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from callbacks import EchoTrapDetector, Results, RolloutMetrics, VarianceFilter
from ragen_pl.errors import ConfigError
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.callback_checks.user_callbacks import fault_of_callback, refuse_wrong_hooks


class Short(RolloutCallback):
    def on_rollout_end(self, trainer: Any, groups: Any) -> None:  # type: ignore[override]
        return None


class Longer(Callback):
    def on_train_start(self, trainer: Any, pl_module: Any, more: int) -> None:  # type: ignore[override]
        return None


class Misspelt(RolloutCallback):
    def on_rollouts_end(self, trainer: Any, module: Any, groups: Any) -> None:
        return None


class Number(RolloutCallback):
    on_rollout_start = 3  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (
            Short(),
            r"Short\.on_rollout_end cannot be called: too many .*on_rollout_end\(trainer, mod",
        ),
        (Longer(), r"Longer\.on_train_start cannot be called: missing .*'more'"),
        (Misspelt(), r"Misspelt\.on_rollouts_end is the name of no hook.* call it on_rollout_end"),
        (Number(), r"Number\.on_rollout_start is 3: it must be a method"),
    ],
)
def test_a_hook_of_other_arguments_is_refused_before_the_run(callback: Callback, told: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        refuse_wrong_hooks([callback])


def test_hooks_that_can_be_called_are_accepted() -> None:
    class Loose(RolloutCallback):
        def on_rollout_end(self, *args: Any) -> None:
            return None

        def on_rollout_start(self, trainer: Any, *args: Any, **more: Any) -> None:
            return None

    own = [Loose(), LambdaCallback(on_train_start=lambda trainer, module: None)]
    shipped = [EchoTrapDetector(), Results(), RolloutMetrics(), VarianceFilter(), ModelCheckpoint()]
    refuse_wrong_hooks([*own, *shipped])


class Broken(RolloutCallback):
    def on_rollout_end(self, trainer: Any, module: Any, groups: Any) -> None:
        return groups[0].nothing  # type: ignore[no-any-return]


class Forgetful(EchoTrapDetector):
    def __init__(self, every: int = 1) -> None:
        self.every = every


def raised_by(call: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return caught.value


def test_what_a_hook_raises_is_told_by_class_hook_and_line() -> None:
    error = raised_by(lambda: Broken().on_rollout_end(None, None, ["a"]))
    told = fault_of_callback(error)
    assert told is not None
    assert "test_user_callbacks.Broken.on_rollout_end raised " in told
    assert "AttributeError: 'str' object has no attribute 'nothing' (" in told
    assert "test_user_callbacks.py:" in told
    assert "super()" not in told


def test_a_missing_call_of_the_parents_constructor_is_suspected() -> None:
    trainer: Any = None
    error = raised_by(lambda: Forgetful().on_collection_end(trainer, trainer, []))
    told = fault_of_callback(error)
    assert told is not None
    assert "Forgetful.on_collection_end raised AttributeError" in told
    assert told.endswith("Forgetful.__init__ must call super().__init__() first")


def test_what_shipped_parts_raise_is_left_alone() -> None:
    trainer: Any = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    groups: Any = [1]
    error = raised_by(lambda: RolloutMetrics().on_collection_end(trainer, trainer, groups))
    assert fault_of_callback(error) is None
    assert fault_of_callback(raised_by(lambda: 1 / 0)) is None


def test_what_a_callback_of_lightning_raises_is_told_by_its_name() -> None:
    stopping, trainer = EarlyStopping("val_loss"), Trainer(accelerator="cpu", logger=False)
    trainer.state.fn, stopping._check_on_train_epoch_end = TrainerFn.FITTING, False
    error = raised_by(lambda: stopping.on_validation_end(trainer, LightningModule()))
    told = fault_of_callback(error)
    assert told is not None
    assert ".EarlyStopping.on_validation_end raised RuntimeError: Early stopping" in told
