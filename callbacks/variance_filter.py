"""Drop the groups whose members all fared alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed import gather_objects, rank
from ragen_pl.hooks import RolloutCallback
from ragen_pl.ops.selection import ZERO_STD, keep_top_fraction
from ragen_pl.rollout import RolloutConfig
from ragen_pl.rollout_stats import group_scores
from ragen_pl.types import Selection, TrajectoryGroup


class VarianceFilter(RolloutCallback):
    """Train the policy on the most uncertain groups only: StarPO-S's trajectory filter (RAGEN §4).

    A group's score is the standard deviation of its members' returns; the best share is chosen over
    the groups of all ranks. The critic still learns from every trajectory.

    Args:
        keep_fraction: Share of groups to keep; 1 switches the filter off.
        include_zero: Whether groups whose members all got the same return may fill up the share.
    """

    def __init__(self, keep_fraction: float = 0.25, include_zero: bool = False) -> None:
        super().__init__()
        if not 0.0 < keep_fraction <= 1.0:
            raise ValueError(
                f"keep_fraction is {keep_fraction}; it must lie in (0, 1] (the paper's is 0.25, "
                "1 switches the filter off)"
            )
        self.keep_fraction = keep_fraction
        self.include_zero = include_zero

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the size of groups where nobody has before."""
        rollout = getattr(getattr(trainer, "datamodule", None), "rollout", None)
        if stage == "fit" and rollout is not None:
            self.check(rollout)

    def check(self, rollout: RolloutConfig) -> None:
        """Refuse groups of one: they have no spread, so nothing would ever be kept.

        Raises:
            ValueError: unless the filter is off.
        """
        if rollout.group_size == 1 and self.keep_fraction < 1.0:
            raise ValueError(
                "rollout.group_size is 1, but VarianceFilter ranks groups by the spread of their "
                "members' returns: set rollout.group_size to 2 or more, or keep_fraction to 1.0"
            )

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> Selection:
        """Weigh kept groups 1 and the others, and members without a fair ending, 0."""
        own = [
            (group.group_id, score)
            for group, score in zip(groups, group_scores(groups), strict=True)
        ]
        # Sorted by identity, so that ties break alike however the groups are dealt to ranks.
        table = sorted(
            (group_id, source, index, score)
            for source, scores in enumerate(gather_objects(own))
            for index, (group_id, score) in enumerate(scores)
        )
        scores = [score for *_, score in table]
        mask = keep_top_fraction(
            torch.tensor(scores, dtype=torch.float64),
            self.keep_fraction,
            include_zero=self.include_zero,
        ).tolist()
        self._record_scores(scores, mask)
        kept = {
            index
            for (_, source, index, _), is_kept in zip(table, mask, strict=True)
            if is_kept and source == rank()
        }
        return Selection(
            tuple(
                tuple(float(index in kept and member.survived) for member in group.trajectories)
                for index, group in enumerate(groups)
            )
        )

    def _record_scores(self, scores: Sequence[float], mask: Sequence[bool]) -> None:
        scored = [s for s in scores if not math.isnan(s)]
        kept = [s for s, k in zip(scores, mask, strict=True) if k and not math.isnan(s)]
        self.record(
            {
                "rollout/kept_fraction": _mean([float(k) for k in mask]),
                "rollout/in_group_std": _mean(scored),
                "rollout/in_group_std_kept": _mean(kept) if kept else 0.0,
                "rollout/zero_std_share": _mean([float(s <= ZERO_STD) for s in scored]),
            }
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
