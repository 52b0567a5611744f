"""The trainer's keys: those that must not be set here, its strategy, its loggers."""

from __future__ import annotations

import os
import re
from typing import Any

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy, StrategyRegistry

from ragen_pl.cli.config.messages import look_up
from ragen_pl.distributed.fsdp import FSDP2, FSDP_NAME
from ragen_pl.errors import ConfigError

_UPDATE = "the update is not Lightning's own: set {} instead"
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "gradient_clip_val": ((), _UPDATE.format("model.optimization.max_grad_norm")),
    "gradient_clip_algorithm": ((), _UPDATE.format("model.optimization.max_grad_norm")),
    "accumulate_grad_batches": (
        (1,),
        _UPDATE.format("model.optimization.tokens_per_micro_batch"),
    ),
    "max_steps": ((-1,), "a run is counted in iterations: set trainer.max_epochs instead"),
    "fast_dev_run": (
        (False,),
        "it would end in the warm start and try nothing of RL: the command doctor tries a run's "
        "parts, and a small trainer.max_epochs is a short one",
    ),
    "overfit_batches": (
        (0,),
        "every iteration plays new starts: set data.rollout.num_groups for smaller ones instead",
    ),
    "limit_train_batches": (
        (1.0,),
        "an iteration trains on all that it collects: set data.rollout.num_groups and online_k, or "
        "data.warm_start.updates_per_iteration, instead",
    ),
    **dict.fromkeys(
        ("limit_val_batches", "limit_test_batches", "limit_predict_batches"),
        ((1.0,), "an evaluation set is played as a whole: set data.evaluation.size instead"),
    ),
    "val_check_interval": (
        (1.0,),
        "evaluation sets are played after whole iterations: set trainer.check_val_every_n_epoch "
        "instead",
    ),
    "enable_checkpointing": (
        (True,),
        "the last policy is always saved: a checkpoints.every_n_iterations above "
        "trainer.max_epochs saves no other",
    ),
    "barebones": ((False,), "a run without logs and results would say nothing: leave it out"),
    "reload_dataloaders_every_n_epochs": ((0,), "every iteration collects anew: leave it out"),
    "use_distributed_sampler": ((True,), "ranks share every rollout by themselves: leave it out"),
    "sync_batchnorm": ((False,), "language models have no batch norm: leave it out"),
    "model_registry": ((), "only Lightning's own checkpoints are uploaded: leave it out"),
}
"""The trainer's keys that would have no effect here or break a run: the values beside null that ask
for nothing, and the reason with the remedy."""

_WHOLE_NAMES = {
    "None": "32-true",
    "32": "32-true",
    "64": "64-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
}
"""Short names of precisions, as Lightning reads them."""


def check_trainer_keys(trainer: Any, command: str) -> None:
    """Check the trainer's keys whose values alone decide whether the command can run.

    Raises:
        ConfigError: for the first key that is wrong.
    """
    for key, (idle, why) in _FIXED.items():
        if not _asks_for_nothing(key, trainer[key], idle, command):
            raise ConfigError(f"trainer.{key} is {_shown(trainer[key])}, but {why}")
    _check_log_interval(trainer)
    _check_max_time(trainer.max_time)
    if str(trainer.devices) == "0":
        raise ConfigError("trainer.devices is 0; it must be at least 1, or auto")
    _check_strategy(trainer.strategy)
    if command == "fit":
        _check_length(trainer.max_epochs)
        _check_validation(trainer.check_val_every_n_epoch)


def _asks_for_nothing(key: str, value: Any, idle: tuple[Any, ...], command: str) -> bool:
    if value is None:
        return True
    if key == "limit_val_batches" and command == "fit" and value == 0:
        return True  # a run without validations
    # 1.0 is all batches, 1 is one of them.
    is_count = key.startswith("limit_") and isinstance(value, int)
    return value in idle and not is_count


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_log_interval(trainer: Any) -> None:
    if trainer.log_every_n_steps not in (None, 1) and not trainer.callbacks:
        raise ConfigError(
            f"trainer.log_every_n_steps is {trainer.log_every_n_steps}, but every metric is of a "
            "whole iteration and logged in each: leave it out"
        )


def _check_max_time(given: Any) -> None:
    if isinstance(given, str) and not re.fullmatch(r"\d+(:\d\d){3}", given):
        raise ConfigError(
            f"trainer.max_time is {given}; it must be days, hours, minutes and seconds: "
            "00:08:00:00 is eight hours"
        )


def _check_strategy(strategy: Any) -> None:
    if isinstance(strategy, str) and "spawn" in strategy:
        raise ConfigError(
            f"trainer.strategy is {strategy}, whose processes would be sent the run's parts by "
            "pickle, which they do not survive: set ddp instead"
        )


def check_launch(trainer: Any, environment: Any) -> None:
    """Check that something starts the other nodes, for which this one would wait half an hour.

    Args:
        trainer: The trainer's keys.
        environment: The cluster environment of the trainer's strategy.

    Raises:
        ConfigError: when nothing does.
    """
    is_alone = isinstance(environment, LightningEnvironment) and "NODE_RANK" not in os.environ
    if trainer.num_nodes > 1 and is_alone and "GROUP_RANK" not in os.environ:
        raise ConfigError(
            f"trainer.num_nodes is {trainer.num_nodes}, but nothing starts the other nodes: start "
            "the command with torchrun or SLURM (docs/distributed.md)"
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


def precision_name(given: Any) -> str:
    """Return a precision by its whole name, as Lightning reads the short ones."""
    return _WHOLE_NAMES.get(str(given), str(given))


def strategy_class(given: Strategy | str) -> type[Strategy]:
    """Return the class of a strategy or of a strategy's name; of ``auto``, one for one device.

    Raises:
        ConfigError: when there is no such name.
    """
    if isinstance(given, Strategy):
        return type(given)
    classes: dict[str, type[Strategy]] = {
        "auto": SingleDeviceStrategy,
        **{
            name: entry["strategy"]
            for name, entry in StrategyRegistry.items()
            if "spawn" not in name  # refused
        },
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
