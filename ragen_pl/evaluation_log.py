"""Log the scores of an evaluation."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from ragen_pl.distributed import gather_objects
from ragen_pl.evaluation import Score, score
from ragen_pl.types import Evaluation


def log_evaluation(module: LightningModule, evaluation: Evaluation) -> Score:
    """Score what all ranks played and log it under ``val/<panel>/``; every rank must call it."""
    played = {group.group_id: group for part in gather_objects(evaluation.groups) for group in part}
    scored = score([played[place] for place in sorted(played)])
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
        {f"val/{evaluation.panel}/{name}": value for name, value in metrics.items()},
        on_step=False,
        on_epoch=True,
        batch_size=1,
        add_dataloader_idx=False,
        sync_dist=True,
    )
    return scored
