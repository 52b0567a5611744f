"""Print and log the scores of ``validate``, ``test`` and ``predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.report.tables import PolicyResult, render
from ragen_pl.training.callback import announce
from ragen_pl.training.evaluation import score_of_all_ranks
from ragen_pl.training.run_folder import BEST
from ragen_pl.types import Evaluation

_CHOSEN = (
    "best.ckpt was chosen among many for its score on the first evaluation set, so on those "
    "starts it looks "
    "better than it is; a run's results are those of last.ckpt"
)


class EvaluationTable(Callback):
    """Print success per evaluation set with its 95 % interval when an evaluation has ended.

    Silent in ``fit``, whose own table has more in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scores: list[PolicyResult] = []

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Take an evaluation set in."""
        self._take(trainer, args[2])

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Take an evaluation set in."""
        self._take(trainer, args[2])

    def on_predict_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Take an evaluation set in."""
        self._take(trainer, args[2])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print."""
        self._print(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print."""
        self._print(trainer)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print."""
        self._print(trainer)

    def _take(self, trainer: Trainer, batch: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING or not isinstance(batch, Evaluation):
            return
        path = str(trainer.ckpt_path or "untrained")
        scored = score_of_all_ranks(trainer, f"{path} on {batch.eval_set}", batch.groups)
        if scored is not None:
            self._scores.append(PolicyResult(path, batch.eval_set, batch.temperature, scored))

    def _print(self, trainer: Trainer) -> None:
        if self._scores:
            temperature = self._scores[0].temperature or 0.0
            announce(trainer, "\n" + render(self._scores, temperature))
            if Path(str(trainer.ckpt_path)).stem == BEST:
                announce(trainer, _CHOSEN)
        self._scores = []
