"""The trainer's keys: those that must not be set here, its strategy, its loggers."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy, StrategyRegistry

from ragen_pl.cli.config.messages import look_up
from ragen_pl.distributed.fsdp import FSDP2, FSDP_NAME
from ragen_pl.errors import ConfigError

_OWN_KEYS = {
    "gradient_clip_val": (None, "model.optimization.max_grad_norm"),
    "gradient_clip_algorithm": (None, "model.optimization.max_grad_norm"),
    "accumulate_grad_batches": (1, "model.optimization.tokens_per_micro_batch"),
}
"""The trainer's keys that have no effect on an update here: the value that asks for nothing, and
the key in their place."""


def check_trainer_keys(trainer: Any, command: str) -> None:
    """Check the trainer's keys whose values alone decide whether the command can run.

    Raises:
        ConfigError: for the first key that is wrong.
    """
    if trainer.max_steps != -1:  # Lightning miscounts epochs when such a run is resumed
        raise ConfigError(
            f"trainer.max_steps is {trainer.max_steps}, but a run is counted in "
            "iterations: set trainer.max_epochs instead"
        )
    _refuse_keys_of_updates(trainer)
    if command == "fit":
        _check_length(trainer.max_epochs)
        _check_validation(trainer.check_val_every_n_epoch)


def _refuse_keys_of_updates(trainer: Any) -> None:
    """Refuse the trainer's keys of an optimization that Lightning itself would do.

    Raises:
        ConfigError: naming the key in its place, for the first of them that is set.
    """
    for key, (idle, instead) in _OWN_KEYS.items():
        if trainer[key] not in (None, idle):
            raise ConfigError(
                f"trainer.{key} is {trainer[key]}, but the update is not Lightning's own: set "
                f"{instead} instead"
            )


def _check_length(max_epochs: int | None) -> None:
    if max_epochs is None or (max_epochs < 1 and max_epochs != -1):
        raise ConfigError(
            f"trainer.max_epochs is {max_epochs}; a run has 1 iteration or more, as many as this "
            "says, and -1 has no end but trainer.max_time (validate scores a checkpoint without "
            "training)"
        )


def _check_validation(every: int | None) -> None:
    if every is None or every < 1:
        raise ConfigError(
            f"trainer.check_val_every_n_epoch is {every}; evaluation sets are played every 1 "
            "iteration or more (a number above trainer.max_epochs plays them at the ends alone)"
        )


def strategy_class(given: Strategy | str) -> type[Strategy]:
    """Return the class of a strategy or of a strategy's name; of ``auto``, one for one device.

    Raises:
        ConfigError: when there is no such name.
    """
    if isinstance(given, Strategy):
        return type(given)
    classes: dict[str, type[Strategy]] = {
        "auto": SingleDeviceStrategy,
        **{name: entry["strategy"] for name, entry in StrategyRegistry.items()},
        FSDP_NAME: FSDP2,  # Lightning's own is FSDP1
    }
    return look_up("trainer.strategy", given, classes)


def loggers(given: Any, run_dir: str, command: str) -> list[Logger]:
    """Return the loggers of a command.

    Training logs to TensorBoard and to the given loggers. An evaluation logs to the given ones
    only; ``true`` means TensorBoard in a folder of its own.
    """
    if given is False or (given is None and command != "fit"):
        return []
    others = [] if given in (None, True) else given if isinstance(given, list) else [given]
    has_own = any(isinstance(logger, TensorBoardLogger) for logger in others)
    if has_own or (others and command != "fit"):
        return others
    place = "tensorboard" if command == "fit" else f"tensorboard-{command}"
    own = TensorBoardLogger(run_dir, name="", version=place, default_hp_metric=False)
    return [own, *others]
