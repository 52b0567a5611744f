"""Checkpoints and exported policies in the run folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from ragen_pl.models.export import export_policy
from ragen_pl.training.access import data_module, learner
from ragen_pl.training.run_folder import BEST, CHECKPOINTS, LAST, METADATA, POLICY, RunMetadata


class Checkpoints(Checkpoint):
    """The files ``last.ckpt`` and ``best.ckpt``, and both policies as Hugging Face folders.

    They are saved at the end of iterations only, under a temporary name first: a run that is killed
    at any moment leaves a complete checkpoint. The best policy is the one with the highest
    validated success on the first evaluation set, measured every
    ``trainer.check_val_every_n_epoch`` iterations. As the best of many on these initial states, its
    score on them is biased upwards: the results of a run are those of its last policy.

    Args:
        every_n_iterations: Iterations between two saves. The last iteration is always saved, also
            when a callback stops the run.
    """

    def __init__(self, every_n_iterations: int = 10) -> None:
        super().__init__()
        if every_n_iterations < 1:
            raise ValueError(
                f"every_n_iterations is {every_n_iterations}; it must be at least 1 (10 is usual)"
            )
        self.every_n_iterations = every_n_iterations
        self.metadata: RunMetadata | None = None
        """Set by the command line; saved with the weights."""
        self.best_success: float | None = None
        self._validated = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Discard the best score if its policy is not in the folder of this run."""
        best = Path(trainer.default_root_dir) / CHECKPOINTS / f"{BEST}.ckpt"
        if not trainer.strategy.broadcast(best.exists() or best.with_suffix(".old").exists()):
            self.best_success = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that there is a new score."""
        self._validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the checkpoints that are due after this iteration."""
        success = self._new_success(trainer)
        self._validated = False
        if success is not None and (self.best_success is None or success > self.best_success):
            self.best_success = success
            self._save(trainer, pl_module, BEST)
        done = trainer.current_epoch + 1
        is_end = trainer.should_stop or done == trainer.max_epochs
        if is_end or done % self.every_n_iterations == 0:
            self._save(trainer, pl_module, LAST)
        if is_end and self.best_success is None:
            self._copy_last_to_best(trainer)

    def _copy_last_to_best(self, trainer: Trainer) -> None:
        """Copy the last policy as the best one if there was no validation."""
        folder = Path(trainer.default_root_dir)
        if trainer.is_global_zero:
            last, best = (folder / CHECKPOINTS / f"{name}.ckpt" for name in (LAST, BEST))
            _replace(_copy(last), best)
            _replace(_copy(folder / POLICY / LAST), folder / POLICY / BEST)
        trainer.strategy.barrier()

    def _new_success(self, trainer: Trainer) -> float | None:
        if not self._validated:
            return None
        eval_set = next(iter(data_module(trainer).eval_sets))
        value = trainer.callback_metrics.get(f"val/{eval_set}/success")
        return None if value is None else float(value)

    def _save(self, trainer: Trainer, module: LightningModule, name: str) -> None:
        folder = Path(trainer.default_root_dir)
        path = folder / CHECKPOINTS / f"{name}.ckpt"
        draft = path.with_suffix(".tmp")
        if trainer.is_global_zero:
            _remove(draft)  # a killed run can leave a folder in place of a file, or the reverse
        trainer.save_checkpoint(draft)
        draft_policy = folder / POLICY / f"{name}.tmp"
        export_policy(learner(module).language, draft_policy)
        if trainer.is_global_zero:
            _replace(draft, path)
            _replace(draft_policy, folder / POLICY / name)
        trainer.strategy.barrier()

    # --- what else is saved -------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the metadata of the run."""
        if self.metadata is not None:
            # The number of threads may have changed since the run began.
            checkpoint[METADATA] = replace(self.metadata, threads=torch.get_num_threads()).plain()

    def state_dict(self) -> dict[str, Any]:
        """Save the best score."""
        return {"best_success": self.best_success}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score."""
        self.best_success = state_dict["best_success"]


def _replace(draft: Path, path: Path) -> None:
    """Move a finished draft into place, atomically unless either path is a folder."""
    if path.is_dir() or (draft.is_dir() and path.exists()):
        old = path.with_suffix(".old")
        _remove(old)
        path.rename(old)
        draft.rename(path)
        _remove(old)
    else:
        draft.replace(path)


def _copy(path: Path) -> Path:
    """Copy a checkpoint or a policy's folder, and return the path of the copy."""
    copy = path.with_suffix(".tmp")
    _remove(copy)
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copyfile(path, copy)
    return copy


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
