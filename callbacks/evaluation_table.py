"""The table of scores that ``validate``, ``test`` and ``predict`` print and write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.report.tables import format_json, format_scores
from ragen_pl.rollout.baselines import BASELINES
from ragen_pl.runtime.durable_files import write_text
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.training.access import completed_iterations, data_module, learner, policy_name
from ragen_pl.training.evaluation.results import PolicyResult, log_metrics, metrics_of
from ragen_pl.training.evaluation.scored_policies import played_by_baseline, played_by_policy, score
from ragen_pl.training.run_folder import BEST, EVALUATIONS, FINAL, file_name_of, is_of, read_results
from ragen_pl.training.trainer import announce, run_dir_of
from ragen_pl.types import Evaluation

_SELECTION_BIAS = (
    "best.ckpt was selected by its success on the first evaluation set, so its success there is "
    "biased upwards; report the results of last.ckpt"
)


class EvaluationTable(Callback):
    """A table of every evaluation set's scores, printed after an evaluation.

    ``validate`` and ``test`` also play each set greedily, and with random moves and the expert, and
    write all results to ``evaluations/`` in the run folder, beside those of the run's untrained and
    warm-started policy. It does nothing in ``fit``, which has a table of its own (``Results``).
    """

    def __init__(self) -> None:
        super().__init__()
        self._results: list[PolicyResult] = []

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Add the results of an evaluation set."""
        self._add_results(trainer, args[0], args[2])

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Add the results of an evaluation set."""
        self._add_results(trainer, args[0], args[2])

    def on_predict_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Add the result of an evaluation set."""
        self._add_results(trainer, args[0], args[2])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table and write the results."""
        self._report(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table and write the results."""
        self._report(trainer, pl_module)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table."""
        self._report(trainer, pl_module)

    # --- one evaluation set -----------------------------------------------------------------------

    def _add_results(self, trainer: Trainer, module: LightningModule, batch: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING or not isinstance(batch, Evaluation):
            return
        policy, eval_set = policy_name(trainer, module), batch.eval_set
        self._add(trainer, module, policy, batch)
        if trainer.state.fn == TrainerFn.PREDICTING:
            return
        data = data_module(trainer)
        for temperature in data.evaluation.temperatures[1:]:
            described = f"{policy}, greedy, on {eval_set}"
            played = played_by_policy(trainer, module, eval_set, temperature, described)
            for result in self._add(trainer, module, policy, played):
                names = {
                    f"val/{eval_set}/greedy/{n}": v for n, v in metrics_of(result.result).items()
                }
                log_metrics(module, names)
        for baseline in BASELINES:
            shown = played_by_baseline(trainer, module, eval_set, baseline)
            if shown is not None:
                self._add(trainer, module, baseline.name, shown)

    def _add(
        self,
        trainer: Trainer,
        module: LightningModule,
        policy: str,
        evaluation: Evaluation,
    ) -> list[PolicyResult]:
        """Add the result of one policy at one temperature; none if everything failed."""
        is_baseline = evaluation.temperature is None
        iterations = None if is_baseline else completed_iterations(trainer, module) or None
        # Predicted trajectories have a file of their own.
        tells_end = trainer.state.fn != TrainerFn.PREDICTING
        found = score(trainer, module, policy, evaluation, iterations, tells_end=tells_end)
        self._results += found
        return found

    # --- the end ----------------------------------------------------------------------------------

    def _report(self, trainer: Trainer, module: LightningModule) -> None:
        results, self._results = self._results, []
        endpoint = learner(module).endpoint
        usage = None if endpoint is None else reduce(add, gather_objects(endpoint.usage))
        if not results or not trainer.is_global_zero:
            return
        policy, run_dir = policy_name(trainer, module), run_dir_of(trainer)
        checkpoint = trainer.ckpt_path
        if checkpoint is None or is_of(run_dir, Path(checkpoint)):
            results += _earlier_policies(run_dir, results)
        lines = ["", format_scores(results)]
        if usage is not None:
            lines += ["", str(usage)]
        if trainer.state.fn != TrainerFn.PREDICTING:
            path = run_dir / EVALUATIONS / f"{file_name_of(policy, run_dir)}.json"
            evaluation = data_module(trainer).evaluation
            content = {
                "policy": policy,
                "size": evaluation.size,
                "samples": evaluation.samples,
                **({} if usage is None else {"usage": usage.to_dict()}),
                "evaluations": [entry.to_dict() for entry in results],
            }
            try:
                write_text(path, format_json(content))
                write_text(path.with_suffix(".txt"), "\n".join(lines[1:]) + "\n")
                lines += ["", str(path)]
            except OSError as error:  # the scores are printed all the same
                record_fault(FaultKind.WRITE, f"{path.name} was not written: {error}")
                lines += ["", f"{path} cannot be written: {error}"]
        announce(trainer, "\n".join(lines))
        if Path(str(trainer.ckpt_path)).stem == BEST:
            announce(trainer, _SELECTION_BIAS)


def _earlier_policies(run_dir: Path, results: Sequence[PolicyResult]) -> list[PolicyResult]:
    """Return the run's own scores before training, on the same evaluation sets, of policies that
    were not scored now."""
    content = read_results(run_dir)
    played = {(each.eval_set, each.fingerprint) for each in results}
    others = {FINAL, *(each.name for each in BASELINES), *(each.policy for each in results)}
    entries = [] if content is None else map(PolicyResult.from_dict, content["evaluations"])
    return [
        each
        for each in entries
        if each.policy not in others and (each.eval_set, each.fingerprint) in played
    ]
