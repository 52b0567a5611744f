"""Add up what a process holds in each phase of an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ragen_pl.cli.plan.networks import Counts, Gathered
from ragen_pl.cli.plan.passes import Peak, annotate_peak, cache_bytes, collect_peak, update_peak
from ragen_pl.cli.plan.setting import Cluster, PlanInput

_ROLLOUT_BYTES = 51
"""Of a token in ``RolloutBatch`` and ``TrainingBatch``: three int64, three bool, six float32."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Hold the peaks of one process's passes, and its cache, in bytes."""

    collect: Peak
    annotate: Peak
    update: Peak
    cache: int

    @classmethod
    def of(cls, setting: PlanInput, rows: int) -> Passes:
        """Read them for a process that collects ``rows`` trajectories."""
        cache = cache_bytes(setting, rows)
        collect = collect_peak(setting, rows, cache)
        return cls(collect, annotate_peak(setting), update_peak(setting), cache)


@dataclass(frozen=True, slots=True)
class Memory:
    """Hold one process's bytes by what they are for, phase by phase."""

    phases: Mapping[str, Mapping[str, int]]

    @property
    def totals(self) -> dict[str, int]:
        """What each phase needs at its peak."""
        return {phase: sum(parts.values()) for phase, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        return max(self.totals.values())

    @property
    def fullest(self) -> str:
        """The phase with the peak."""
        totals = self.totals
        return max(totals, key=lambda phase: totals[phase])


def plan_memory(
    setting: PlanInput, counts: Counts, passes: Passes, cluster: Cluster, gathered: Gathered
) -> Memory:
    """Plan one process's memory.

    When sharded, weights, gradients and moments are divided by the number of processes. The policy
    is whole while it collects; otherwise what is gathered comes and goes. Autocast makes no copies
    of weights that are gathered in its type.

    Args:
        passes: For the trajectories of one process.
        gathered: What is whole for a while when sharded.
    """
    shards = cluster.processes if cluster.sharded else 1
    always = {
        "weights": counts.weight_bytes // shards,
        "optimizer": counts.moment_bytes // shards,
        "rollout": _rollout_bytes(setting, cluster),
    }
    gradients = {"gradients": counts.gradient_bytes // shards}
    whole = gathered.policy if shards > 1 else 0
    around = {"gathered weights": gathered.at_work if shards > 1 else 0}
    with_copies = shards == 1

    def needs(peak: Peak) -> dict[str, int]:
        return {"copies": peak.copies if with_copies else 0, "passing": peak.passing}

    phases = {
        "collect": {
            **always,
            "gathered weights": whole,
            "cache": passes.cache,
            **needs(passes.collect),
        },
        "annotate": {**always, **around, **needs(passes.annotate)},
        "update": {**always, **gradients, **around, **needs(passes.update)},
    }
    if cluster.processes > 1 and not cluster.sharded:
        # Gradients are laid in one row, which is copied to be summed.
        phases["step"] = {
            **always,
            **gradients,
            "passing": 2 * counts.gradient_bytes,
        }
    return Memory(phases)


def _rollout_bytes(setting: PlanInput, cluster: Cluster) -> int:
    """Count the collection as tensors, and once more as optimizer batches."""
    tokens = setting.rows(cluster) * setting.rollout.max_context
    return 2 * _ROLLOUT_BYTES * tokens
