"""The parts that a configuration describes, built without starting a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from ragen_pl.cli.application import Application, run
from ragen_pl.cli.config.trainer_keys import check_trainer_keys, precision_name, strategy_class
from ragen_pl.cli.resume import check_continuation, checkpoint_path, read_metadata
from ragen_pl.training.run_folder import Export, RunMetadata


class Unstarted(Application):
    """An application that is built and checked whole, and starts no run."""

    def _claim_folder(self, run_dir: Path, loaded: Path | None) -> None:
        """Leave the run's folder as it is."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


class ConfiguredParts(Unstarted):
    """An application that builds the configured parts, with a stand-in for the trainer."""

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        # The configured trainer may need devices that this machine does not have.
        return Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)

    def after_instantiate_classes(self) -> None:
        """Leave run folder and threads as they are."""

    @property
    def run_dir(self) -> Path:
        """Folder of the run."""
        return Path(self.config["fit"].run_dir)

    @property
    def trainer_config(self) -> Any:
        """The trainer's arguments, which are parsed but not used."""
        return self.config["fit"].trainer

    @property
    def export(self) -> Export:
        """When policies are exported."""
        given: Export = self.config["fit"].checkpoints.export
        return given

    @property
    def precision(self) -> str:
        """The trainer's precision by its whole name."""
        return precision_name(self.trainer_config.precision)

    def check_run(self) -> None:
        """Check the trainer's keys and the parts against each other as ``fit`` does, as far as that
        needs no devices.

        Raises:
            ConfigError: for the first key that is wrong.
        """
        self.check_trainer()
        with self.qualified(ValueError):
            self.datamodule.check_learner(self.model)

    def check_trainer(self) -> None:
        """Check the trainer's keys as ``fit`` does, as far as that needs no devices.

        Raises:
            ConfigError: for the first key that is wrong.
        """
        check_trainer_keys(self.trainer_config, "fit")
        strategy = strategy_class(self.config_init["fit"].trainer.strategy)
        with self.qualified(ValueError):
            self.model.check_trainer(self.precision, strategy)

    def checkpoint(self) -> tuple[Path, RunMetadata] | None:
        """Find the checkpoint that ``--ckpt_path`` names, and check that it has this
        configuration's weights; None if none is named.

        Raises:
            ConfigError: when there is none, or it was made with another model.
        """
        wanted = self.config["fit"].ckpt_path
        if wanted is None:
            return None
        path, plain = checkpoint_path(self.run_dir, str(wanted)), self._plain
        metadata = read_metadata(path)
        config = {"model": plain["model"], "data": plain["data"]}
        own = RunMetadata(config, plain["seed_everything"], metadata.threads, metadata.vocabulary)
        check_continuation(metadata, own, path, resumes_training=False)
        return path, metadata


def configured_parts(
    argv: Sequence[str], kind: type[ConfiguredParts] = ConfiguredParts
) -> ConfiguredParts:
    """Build the parts of a prepared command line, its options being those of ``fit``.

    Raises:
        ConfigError: when the configuration is wrong.
    """
    return run(["fit", *argv], kind)
