"""Checkpoints and exported policies in the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from ragen_pl.distributed.checkpoint_io import (
    WRITE_ERRORS,
    WRITE_FAILURE,
    describe_write_error,
)
from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.distributed.fsdp import FSDP2
from ragen_pl.distributed.shared_folder import check_shared, wait_for_shards
from ragen_pl.errors import ConfigError
from ragen_pl.models.export import export_policy
from ragen_pl.runtime.durable_files import draft_of, put_in_place, recover, remove
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.training.access import data_module, learner
from ragen_pl.training.run_folder import (
    BEST,
    CHECKPOINTS,
    LAST,
    POLICY,
    PREVIOUS,
    Export,
)
from ragen_pl.training.trainer import announce, ends_after_this, run_dir_of


class Checkpoints(Checkpoint):
    """The files ``last.ckpt`` and ``best.ckpt``, and both policies as Hugging Face folders.

    They are saved at the end of iterations only, under a temporary name, and flushed to the disk
    before they are renamed: a run that is killed at any moment, or loses power, leaves a complete
    checkpoint. ``previous.ckpt`` is the last one before ``last.ckpt``, for the case that a disk
    loses that. If a checkpoint cannot be written, such as on a full disk, the one before it stays,
    the run says so and goes on. The best policy is the one with the highest validated success on
    the first evaluation set, measured every ``trainer.check_val_every_n_epoch`` iterations. As the
    best of many on these initial states, its score on them is biased upwards: the results of a run
    are those of its last policy.

    Args:
        every_n_iterations: Iterations between two saves. The last iteration is always saved, also
            when a callback stops the run, and the first one if a teacher's lessons are saved, which
            may have cost more than many iterations.
        export: When the policy is written as a Hugging Face folder. always: with every checkpoint;
            end: ``policy/last`` at the end of the run alone, and ``policy/best`` only where nothing
            was validated, so that the two are the same. Under FSDP2 an export gathers all
            weights in float32, and the first rank writes them while the others wait.
    """

    def __init__(self, every_n_iterations: int = 10, export: Export = "always") -> None:
        super().__init__()
        if every_n_iterations < 1:
            raise ValueError(
                f"every_n_iterations is {every_n_iterations}; it must be at least 1 (10 is usual)"
            )
        self.every_n_iterations = every_n_iterations
        self.export = export
        self.best_success: float | None = None
        self._validated = False
        self.last_saved: int | None = None
        """Iterations of ``last.ckpt``; None until this process has loaded or saved it."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clean the folders after a killed save; discard the best score if its policy is not in the
        folder of this run."""
        folder = run_dir_of(trainer)
        if isinstance(trainer.strategy, FSDP2):
            check_shared(folder)
        if trainer.is_global_zero:
            recover(folder / CHECKPOINTS, ".ckpt")
            recover(folder / POLICY, "")
        last = folder / CHECKPOINTS / f"{LAST}.ckpt"
        if trainer.ckpt_path is not None and Path(trainer.ckpt_path).resolve() == last.resolve():
            self.last_saved = trainer.current_epoch
        best = folder / CHECKPOINTS / f"{BEST}.ckpt"
        if not trainer.strategy.broadcast(best.exists()):
            self.best_success = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that there is a new score."""
        self._validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the checkpoints that are due after this iteration."""
        success = self._new_success(trainer)
        self._validated = False
        if success is not None and (self.best_success is None or success > self.best_success):
            before, self.best_success = self.best_success, success  # saved with the checkpoint
            if not self._save(trainer, pl_module, BEST, exports=self.export == "always"):
                self.best_success = before
        done = trainer.current_epoch + 1
        is_end = ends_after_this(trainer)
        is_taught = done == 1 and data_module(trainer).teaching.lessons_are_saved
        is_due = is_end or is_taught or done % self.every_n_iterations == 0
        exports = self.export == "always" or is_end
        if is_due and self._save(trainer, pl_module, LAST, exports=exports):
            self.last_saved = done
        if is_end and self.best_success is None:
            self._copy_last_to_best(trainer)

    def _copy_last_to_best(self, trainer: Trainer) -> None:
        """Copy the last policy as the best one if there was no validation."""
        folder = run_dir_of(trainer)
        places = folder / CHECKPOINTS / f"{LAST}.ckpt", folder / POLICY / LAST

        def copy() -> None:
            for last in filter(Path.exists, places):
                best = last.with_name(last.name.replace(LAST, BEST))
                put_in_place(_copy(last, draft_of(best)), best)

        self._write(trainer, f"{BEST}.ckpt", copy)

    def _new_success(self, trainer: Trainer) -> float | None:
        if not self._validated:
            return None
        eval_set = next(iter(data_module(trainer).eval_sets))
        value = trainer.callback_metrics.get(f"val/{eval_set}/success")
        return None if value is None else float(value)

    def _save(self, trainer: Trainer, module: LightningModule, name: str, *, exports: bool) -> bool:
        """Save checkpoint and policy; return whether they could be written, on every rank."""
        folder = run_dir_of(trainer)
        path, policy = folder / CHECKPOINTS / f"{name}.ckpt", folder / POLICY / name
        drafts = draft_of(path), draft_of(policy)
        if trainer.is_global_zero:
            remove(drafts[0])  # a killed run can leave a folder in place of a file, or the reverse
        with WRITE_FAILURE.collect():
            trainer.save_checkpoint(drafts[0])
            if exports:
                with WRITE_FAILURE.guard():
                    export_policy(learner(module).language, drafts[1])

        def replace_all() -> None:
            if drafts[0].is_dir():  # of shards, each of which another rank has written
                wait_for_shards(drafts[0])
            before = path.with_name(f"{PREVIOUS}.ckpt") if name == LAST else None
            put_in_place(drafts[0], path, before)
            if exports:
                put_in_place(drafts[1], policy)
            else:
                remove(policy)  # an earlier one belongs to another checkpoint

        return self._write(trainer, path.name, replace_all, WRITE_FAILURE.text, drafts)

    def _write(
        self,
        trainer: Trainer,
        name: str,
        write: Callable[[], None],
        failure: str = "",
        drafts: Sequence[Path] = (),
    ) -> bool:
        """Write on the first rank if no rank has failed before; return whether it worked. Every
        rank must call it."""
        failure = _first(failure)
        if not failure and trainer.is_global_zero:
            try:
                write()
            except ConfigError as error:  # of missing shards
                failure = str(error)
            except WRITE_ERRORS as error:
                failure = describe_write_error(error)
        failure = _first(failure)
        if not failure or not trainer.is_global_zero:
            return not failure
        for draft in drafts:  # else a full disk would stay full
            remove(draft)
        text = (
            f"{name} could not be saved ({failure}); the one before it is kept, and the run goes "
            "on: is the disk full?"
        )
        record_fault(FaultKind.WRITE, text, iteration=trainer.current_epoch + 1)
        announce(trainer, f"warning: {text}")
        return False

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Save the best score."""
        return {"best_success": self.best_success}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score."""
        self.best_success = state_dict["best_success"]


def _first(own: str) -> str:
    """Return the first failure of any rank, empty if there is none; every rank must call it."""
    return next(filter(None, gather_objects(own)), "")


def _copy(path: Path, copy: Path) -> Path:
    """Copy a checkpoint or a policy's folder, and return the path of the copy."""
    remove(copy)
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copyfile(path, copy)
    return copy
