"""The resolved configuration, saved with the run and with its loggers."""

from __future__ import annotations

from typing import Any

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from ragen_pl.cli.config.groups import default_values
from ragen_pl.cli.config.parser import RUN_DIR, place_loggers
from ragen_pl.report.run_data import write_defaults
from ragen_pl.report.side_by_side import leaves
from ragen_pl.training.run_folder import CONFIG
from ragen_pl.training.trainer import run_dir_of

_COMPARED = ("data", "model", "filter", "echo_trap", "rollback", "seed_everything")
_COMPARED_OF_TRAINER = ("max_epochs", "precision", "strategy", "devices", "num_nodes")
"""Keys that decide what is learned."""


class SavedConfig(SaveConfigCallback):
    """Callback that saves the resolved configuration with every logger and in the run folder, as a
    file that ``--config`` accepts."""

    def save_config(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            path = run_dir_of(trainer) / CONFIG
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = self.config.clone()
            # Of the command, not of the run: with null in it, test would take no checkpoint.
            whole.pop("ckpt_path")
            # Another run that is started with this file has a folder of its own.
            place_loggers(whole.trainer.logger, RUN_DIR, instead_of=whole.run_dir)
            self.parser.save(whole, path, skip_unset=False, overwrite=True, multifile=False)
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
            write_defaults(path.parent, default_values(config))
            for logger in trainer.loggers:
                logger.log_hyperparams(config)
                if isinstance(logger, TensorBoardLogger):
                    _fill_hparams_tab(logger, config)


def _fill_hparams_tab(logger: TensorBoardLogger, config: dict[str, Any]) -> None:
    """List a run in TensorBoard's HPARAMS tab, beside its success on every evaluation set.

    The keys are those that decide what is learned; ``config.yaml`` has all. The metrics are the
    latest validation's and the final policy's. Lightning itself would need first values of them,
    which would have to be made up.
    """
    from torch.utils.tensorboard.summary import hparams  # slow to load, and not always used

    chosen = {key: config[key] for key in _COMPARED if key in config}
    chosen["trainer"] = {key: config["trainer"][key] for key in _COMPARED_OF_TRAINER}
    values = {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in leaves(chosen)
        if not key.startswith("data.prompts")
    }
    metrics = {
        f"{when}/{eval_set}/success": 0.0
        for eval_set in config["data"]["eval_sets"]
        for when in ("final", "val")
    }
    writer = logger.experiment._get_file_writer()
    summaries = hparams(values, metrics)  # type: ignore[no-untyped-call]  # uses the names alone
    for summary in summaries:
        writer.add_summary(summary)
