"""The table of scores that ``validate``, ``test`` and ``predict`` print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.report.tables import PolicyResult, format_results
from ragen_pl.training.callback import announce
from ragen_pl.training.evaluation import summarize_all_ranks
from ragen_pl.training.run_folder import BEST
from ragen_pl.types import Evaluation

_SELECTION_BIAS = (
    "best.ckpt was selected by its success on the first evaluation set, so its success there is "
    "biased upwards; report the results of last.ckpt"
)


class EvaluationTable(Callback):
    """A table of success per evaluation set, with its 95 % interval, printed after an evaluation.

    It is not printed in ``fit``, which has a more detailed table of its own (``Results``).
    """

    def __init__(self) -> None:
        super().__init__()
        self._results: list[PolicyResult] = []

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Add the result of an evaluation set."""
        self._add_result(trainer, args[2])

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Add the result of an evaluation set."""
        self._add_result(trainer, args[2])

    def on_predict_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Add the result of an evaluation set."""
        self._add_result(trainer, args[2])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table."""
        self._print(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table."""
        self._print(trainer)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table."""
        self._print(trainer)

    def _add_result(self, trainer: Trainer, batch: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING or not isinstance(batch, Evaluation):
            return
        path = str(trainer.ckpt_path or "untrained")
        result = summarize_all_ranks(trainer, f"{path} on {batch.eval_set}", batch.groups)
        if result is not None:
            self._results.append(PolicyResult(path, batch.eval_set, batch.temperature, result))

    def _print(self, trainer: Trainer) -> None:
        if self._results:
            temperature = self._results[0].temperature or 0.0
            announce(trainer, "\n" + format_results(self._results, temperature))
            if Path(str(trainer.ckpt_path)).stem == BEST:
                announce(trainer, _SELECTION_BIAS)
        self._results = []
