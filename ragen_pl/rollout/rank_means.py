"""Means over all ranks, by name."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torchmetrics import MeanMetric

from ragen_pl.distributed.collectives import gather_objects


class RankMeans:
    """Means by name over all ranks, in which every item weighs the same unless a weight is given
    (``MeanMetric``).

    Items are kept as plain numbers until the means are taken, because one update of a
    ``MeanMetric`` costs as much as a turn.
    """

    def __init__(self) -> None:
        self._items: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, name: str, value: float, count: float = 1.0, weight: float = 1.0) -> None:
        """Add a value, or a sum of ``count`` values, each of which weighs ``weight``."""
        if count:
            self._items[name].append((value / count, count * weight))

    def means(self) -> dict[str, float]:
        """Return the means over all ranks; every rank must call it, and gets the same ones."""
        own = {name: _mean(items) for name, items in self._items.items()}
        of_ranks: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for part in gather_objects(own):  # once for all names, since ranks may have different ones
            for name, item in part.items():
                of_ranks[name].append(item)
        return {name: _mean(items)[0] for name, items in of_ranks.items()}


def _mean(items: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of (value, weight) pairs and their total weight."""
    # Not synchronized by itself: ranks may have different names, so ``means`` gathers them at once.
    # NaN must stay NaN, but "disable" would drop the weights (torchmetrics 1.9).
    metric = MeanMetric(nan_strategy=math.nan, sync_on_compute=False).set_dtype(torch.float64)
    values, weights = torch.tensor(items, dtype=torch.float64).unbind(1)
    metric.update(values, weights)
    return float(metric.compute()), float(weights.sum())
