"""The groups of keys of every command: callbacks with keys, the run's own keys, and defaults."""

from __future__ import annotations

from typing import Any, Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import callbacks as cb
from ragen_pl.cli.config.defaults import config_defaults
from ragen_pl.cli.config.schema import Schema, constructor_keys, parameter_keys
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO

GROUPS: dict[str, type[Callback]] = {
    "filter": cb.VarianceFilter,
    "policy_change": cb.PolicyChange,
    "echo_trap": cb.EchoTrapDetector,
    "rollback": cb.Rollback,
    "entropy": cb.EntropyLogger,
    "results": cb.Results,
    "checkpoints": cb.Checkpoints,
    "trajectories": cb.TrajectoryWriter,
    "display": cb.RunDisplay,
    "report": cb.ReportWriter,
    "watchdog": cb.Watchdog,
}
"""Callbacks with keys that every run has, by the name of their group of keys. The alarm
comes after those whose metrics it judges."""
ALWAYS = (
    cb.RolloutMetrics,
    cb.PhaseTimer,
    cb.ThreadTuning,
    cb.SkippedSteps,
    cb.FaultLog,
    cb.EvaluationTable,
    cb.SampleDialogues,
    cb.IterationAxis,
    cb.Interruption,
)
"""Callbacks without keys that every run has. They come after all others, so that the hint on how
to resume is printed last."""
LINKED = {
    "data.run_seed": "seed_everything",
    "model.seed": "seed_everything",
    "trainer.default_root_dir": "run_dir",
}
"""Keys that take the value of another one."""
VOCABULARY = "model.vocabulary"
"""Key of the embedded tokenizer's words, which come from the data module or a checkpoint."""
HINDSIGHT_LR = "model.hindsight_lr"
"""Key of the learning rate that ``data.hindsight`` holds."""
TRAINER_DEFAULTS = {
    "max_epochs": 100,
    "check_val_every_n_epoch": 25,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}
"""Values of the trainer's keys in place of Lightning's own."""


def add_run_keys(parser: LightningArgumentParser, run_dir: str) -> None:
    """Add the keys of the run itself.

    Args:
        run_dir: Default value of the key ``run_dir``.
    """
    parser.add_argument(
        "--seed_everything",
        type=NonNegativeInt,
        default=0,
        help="The run's only seed: of weights, starts, sampling and the environment's noise.",
    )
    parser.add_argument(
        "--run_dir",
        type=str,
        default=run_dir,
        help="Folder of the run. An earlier run there that is not resumed is moved aside; one that "
        "another process is training there is left alone, and the command refused.",
    )
    parser.add_argument(
        "--threads",
        type=Literal["auto"] | PositiveInt,
        default="auto",
        help="Threads PyTorch computes with; auto tries, takes the fastest number, and tries "
        "again when the machine becomes busy or quiet.",
    )


def default_values(config: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of the keys of a run's configuration, as far as they are known."""
    groups = {"trainer": Trainer, "model": StarPO, "data": RolloutDataModule, **GROUPS}
    own = {"seed_everything": 0, "threads": "auto", "ckpt_path": None, "weights_only": True}
    trainer = {f"trainer.{name}": value for name, value in TRAINER_DEFAULTS.items()}
    return own | config_defaults(config, groups) | trainer


def schema_of(command: str) -> Schema:
    """List the top-level keys of a command with the constructors behind them."""
    groups = {"trainer": Trainer, "model": StarPO, "data": RolloutDataModule, **GROUPS}
    method = parameter_keys(getattr(Trainer, command)) or {}
    keys: dict[str, Any] = dict.fromkeys(("config", "seed_everything", "run_dir", "threads"))
    keys |= {name: None for name in method if name not in LightningCLI.subcommands()[command]}
    keys |= {name: kind for name, kind in groups.items() if constructor_keys(kind) is not None}
    return keys
