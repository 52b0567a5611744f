"""Score what all ranks played of an evaluation, and log it."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed import gather_objects
from ragen_pl.evaluation import Score, score
from ragen_pl.hooks import announce
from ragen_pl.types import Evaluation, TrajectoryGroup


def score_of_all_ranks(
    trainer: Trainer, name: str, groups: Sequence[TrajectoryGroup]
) -> Score | None:
    """Score what all ranks played, a start that several played once; every rank must call it.

    Args:
        name: Of what is scored, for the line that says that it cannot be.
        groups: This rank's.

    Returns:
        None where the environment failed throughout: the run goes on without a score.
    """
    played = {group.group_id: group for part in gather_objects(groups) for group in part}
    if not any(t.counts for group in played.values() for t in group.trajectories):
        announce(trainer, f"{name}: no score, the environment failed throughout")
        return None
    return score([played[place] for place in sorted(played)])


def log_evaluation(module: LightningModule, evaluation: Evaluation) -> None:
    """Log the scores of a panel under ``val/<panel>/``; every rank must call it."""
    prefix, found = f"val/{evaluation.panel}/", module.trainer.callback_metrics
    for name in [name for name in found if name.startswith(prefix)]:
        del found[name]  # Lightning would keep the last ones where there are no new ones
    scored = score_of_all_ranks(module.trainer, evaluation.panel, evaluation.groups)
    if scored is None:
        return
    metrics = {
        "success": scored.success,
        "success_low": scored.low,
        "success_high": scored.high,
        "return": scored.mean_return,
        "valid_format": scored.valid_format,
    }
    if scored.true_thoughts is not None:
        metrics["true_thoughts"] = scored.true_thoughts
    module.log_dict(
        {f"{prefix}{name}": value for name, value in metrics.items()},
        on_step=False,
        on_epoch=True,
        batch_size=1,
        add_dataloader_idx=False,
        sync_dist=True,
    )
