"""The HTML report of a run, kept current while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.report.environment import write_environment
from ragen_pl.report.page import MAX_TRAJECTORIES, REPORT, build_report
from ragen_pl.report.run_data import RunReader
from ragen_pl.runtime.durable_files import write_text
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import announce, run_dir_of

WhenToWrite = Literal["validations", "end", "never"]


class ReportWriter(RolloutCallback):
    """The page ``report.html`` in the run folder: curves, alarm, evaluations and trajectories.

    ``run.py report RUN`` writes the same page later, and one that compares several runs. A failure
    is reported and never stops a run.

    Args:
        write: When to write it: after every validation and at the end, only at the end, or never.
        max_trajectories: Trajectories in the page, spread over iterations, evaluation sets,
            difficulties and outcomes.
    """

    def __init__(
        self, write: WhenToWrite = "validations", max_trajectories: int = MAX_TRAJECTORIES
    ) -> None:
        super().__init__()
        if max_trajectories < 0:
            raise ValueError(f"max_trajectories is {max_trajectories}; it must be 0 or more")
        self.write = write
        self.max_trajectories = max_trajectories
        self._reader: RunReader | None = None
        self._validated = False
        self._has_begun = False
        self._has_failed = False
        self._is_final = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record versions and machine, which every report shows."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and trainer.is_global_zero:
            self._reader = RunReader(run_dir_of(trainer))
            self._guard(trainer, lambda: write_environment(run_dir_of(trainer), trainer.world_size))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that there is a run to report."""
        self._has_begun = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that there is something new to show."""
        self._validated = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the report after the iteration of a validation, whose metrics are now logged."""
        if self._validated and self.write == "validations":
            self._write(trainer)
        self._validated = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the report with the final results."""
        self._finish(trainer)

    def on_already_finished(self, trainer: Trainer, module: LightningModule) -> None:
        """Write the report of a run whose final evaluation was interrupted."""
        self._has_begun = True
        self._finish(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the report of what there is; other ranks may have exited."""
        self._finish(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the report of a run that was stopped in its first rollout."""
        if stage == "fit":
            self._finish(trainer)

    def _finish(self, trainer: Trainer) -> None:
        if self._is_final or not self._has_begun or self.write == "never":
            return
        self._is_final = True
        self._write(trainer)
        if trainer.is_global_zero and not self._has_failed:
            announce(trainer, f"report: {run_dir_of(trainer) / REPORT}")

    def _write(self, trainer: Trainer) -> None:
        reader = self._reader
        if reader is None or not trainer.is_global_zero:
            return

        def act() -> None:
            for logger in trainer.loggers:
                logger.save()  # flush the events
            run = reader.read()
            page = build_report([run], self.max_trajectories, [run.defaults])
            write_text(run_dir_of(trainer) / REPORT, page)

        self._guard(trainer, act)

    def _guard(self, trainer: Trainer, act: Callable[[], None]) -> None:
        """Do something that may fail without harm to the run."""
        try:
            act()
            self._has_failed = False
        except Exception as error:  # a report is never worth a run, whatever is wrong with it
            record_fault(FaultKind.WRITE, f"no report: {type(error).__name__}: {error}")
            if not self._has_failed:
                announce(trainer, f"no report: {type(error).__name__}: {error}")
            self._has_failed = True
