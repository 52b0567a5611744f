"""Keep a run's checkpoints and exported policies in its folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from ragen_pl.models.export import export_policy
from ragen_pl.training.access import data_module
from ragen_pl.training.run_folder import BEST, CHECKPOINTS, LAST, METADATA, POLICY, RunMetadata


class Checkpoints(Checkpoint):
    """Save ``last.ckpt`` and ``best.ckpt``, and both policies as Hugging Face folders.

    Saves at the end of iterations only, under a temporary name first: a run that is killed at any
    moment leaves a whole checkpoint. The best policy is the one with the highest validated success
    on the first evaluation set; ``trainer.check_val_every_n_epoch`` says how often that is
    measured. Being the best of many on those very starts, it scores too well on them: what is
    reported of a run is its last policy.

    Args:
        every_n_iterations: Iterations between two saves; the last iteration is always saved, that
            of a stop by a callback too.
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
        self.best_score: float | None = None
        self._validated = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the score to beat where its policy is in the folder of another run."""
        best = Path(trainer.default_root_dir) / CHECKPOINTS / f"{BEST}.ckpt"
        if not trainer.strategy.broadcast(best.exists() or best.with_suffix(".old").exists()):
            self.best_score = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that there is a new score."""
        self._validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what is due at this boundary."""
        score = self._new_score(trainer)
        self._validated = False
        is_best = score is not None and (self.best_score is None or score > self.best_score)
        if is_best:
            self.best_score = score
            self._save(trainer, pl_module, BEST)
        done = trainer.current_epoch + 1
        is_end = trainer.should_stop or done == trainer.max_epochs
        if is_end or done % self.every_n_iterations == 0:
            self._save(trainer, pl_module, LAST)
        if is_end and self.best_score is None:
            self._take_last_for_best(trainer)

    def _take_last_for_best(self, trainer: Trainer) -> None:
        """Without any validation the last policy is the best that is known."""
        folder = Path(trainer.default_root_dir)
        if trainer.is_global_zero:
            last, best = (folder / CHECKPOINTS / f"{name}.ckpt" for name in (LAST, BEST))
            _swap_in(_copied(last), best)
            _swap_in(_copied(folder / POLICY / LAST), folder / POLICY / BEST)
        trainer.strategy.barrier()

    def _new_score(self, trainer: Trainer) -> float | None:
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
            _remove(draft)  # a kill can leave one of the other kind
        trainer.save_checkpoint(draft)
        draft_policy = folder / POLICY / f"{name}.tmp"
        export_policy(cast(Any, module).language, draft_policy)
        if trainer.is_global_zero:
            _swap_in(draft, path)
            _swap_in(draft_policy, folder / POLICY / name)
        trainer.strategy.barrier()

    # --- what else is saved -------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add what the weights were made with."""
        if self.metadata is not None:
            # The number of threads may have followed the machine since the run began.
            checkpoint[METADATA] = replace(self.metadata, threads=torch.get_num_threads()).plain()

    def state_dict(self) -> dict[str, Any]:
        """Save the score to beat."""
        return {"best_score": self.best_score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the score to beat."""
        self.best_score = state_dict["best_score"]


def _swap_in(draft: Path, path: Path) -> None:
    """Put a finished draft in place; where a folder is one of the two, not in a single step."""
    if path.is_dir() or (draft.is_dir() and path.exists()):
        old = path.with_suffix(".old")
        _remove(old)
        path.rename(old)
        draft.rename(path)
        _remove(old)
    else:
        draft.replace(path)


def _copied(path: Path) -> Path:
    """Copy a checkpoint or a policy, to be swapped in elsewhere."""
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
