"""How policies and baselines are scored on an evaluation set, in ``fit`` and after it."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.rollout.actors import Actor
from ragen_pl.training.access import data_module
from ragen_pl.training.evaluation.results import PolicyResult, summarize_all_ranks
from ragen_pl.training.trainer import rollout_callbacks
from ragen_pl.types import Evaluation


def played_by_policy(
    trainer: Trainer,
    module: LightningModule,
    eval_set: str,
    temperature: float,
    description: str,
) -> Evaluation:
    """Play this rank's share of an evaluation set with the current weights.

    Args:
        trainer: The trainer, whose callbacks are told.
        module: The module.
        eval_set: Name of the evaluation set.
        temperature: Sampling temperature; 0 is greedy.
        description: What is played, for the display.
    """
    _tell_start(trainer, module, description)
    groups = data_module(trainer).evaluator.evaluate(trainer, eval_set, temperature)
    return Evaluation(eval_set, temperature, tuple(groups))


def played_by_baseline(
    trainer: Trainer, module: LightningModule, eval_set: str, baseline: Actor
) -> Evaluation | None:
    """Play this rank's share of an evaluation set with a baseline; None if it cannot play it."""
    data = data_module(trainer)
    if not baseline.can_play(data.eval_sets[eval_set]):
        return None
    _tell_start(trainer, module, f"{baseline.name} on {eval_set}")
    groups = data.evaluator.evaluate_baseline(eval_set, baseline)
    return Evaluation(eval_set, None, tuple(groups))


def score(
    trainer: Trainer,
    module: LightningModule,
    policy: str,
    evaluation: Evaluation,
    iterations: int | None,
    *,
    tells_end: bool = True,
) -> list[PolicyResult]:
    """Score the trajectories of all ranks, which must all call it; no result if the environment
    failed in all of them.

    Args:
        trainer: The trainer.
        module: The module.
        policy: Who played.
        evaluation: This rank's trajectories.
        iterations: Iterations that trained the policy; None for actors without a model.
        tells_end: Whether to call the callbacks' ``on_evaluation_end``.
    """
    for callback in rollout_callbacks(trainer) if tells_end else ():
        callback.on_evaluation_end(trainer, module, policy, evaluation, iterations)
    name = evaluation.eval_set
    result = summarize_all_ranks(trainer, f"{policy} on {name}", evaluation.groups)
    if result is None:
        return []
    fingerprint = data_module(trainer).evaluator.evaluation_set(name).fingerprint
    return [PolicyResult(policy, name, evaluation.temperature, result, iterations, fingerprint)]


def _tell_start(trainer: Trainer, module: LightningModule, description: str) -> None:
    for callback in rollout_callbacks(trainer):
        callback.on_evaluation_start(trainer, module, description)
