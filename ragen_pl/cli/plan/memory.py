"""The memory of one process, by phase of an iteration and by purpose."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ragen_pl.cli.plan.inputs import Cluster, PlanInput
from ragen_pl.cli.plan.networks import GatheredBytes, MetaNetworks, ParameterCounts
from ragen_pl.cli.plan.passes import (
    PassPeak,
    StepPeak,
    kv_cache_bytes,
    muon_step_peak,
    rollout_peak,
    score_pass_peak,
    update_peak,
)

BATCH_BYTES_PER_TOKEN = 60
"""Bytes of a token in ``RolloutBatch`` and ``TrainingBatch``: three int64, four bool, eight
float32."""


@dataclass(frozen=True, slots=True)
class PhasePeaks:
    """Peaks of one process's passes, its optimizer step and its key-value cache, in bytes."""

    rollout: PassPeak
    score_pass: PassPeak
    update: PassPeak
    kv_cache: int
    step: StepPeak | None = None
    """Muon's step; None for AdamW alone."""

    @classmethod
    def of(cls, plan_input: PlanInput, rows: int, *, is_captured: bool) -> PhasePeaks:
        """Trace the passes of a process that samples ``rows`` trajectories, with decode steps
        captured as CUDA graphs or not.
        """
        kv_cache = kv_cache_bytes(plan_input, rows)
        rollout = rollout_peak(plan_input, rows, kv_cache, is_captured=is_captured)
        has_muon = plan_input.optimization.muon is not None
        return cls(
            rollout=rollout,
            score_pass=score_pass_peak(plan_input),
            update=update_peak(plan_input),
            kv_cache=kv_cache,
            step=muon_step_peak(plan_input) if has_muon else None,
        )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one process: by phase, and within each by purpose."""

    phases: Mapping[str, Mapping[str, int]]

    @property
    def totals(self) -> dict[str, int]:
        """The peak of each phase."""
        return {phase: sum(parts.values()) for phase, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        return max(self.totals.values())

    @property
    def peak_phase(self) -> str:
        """The phase with the largest peak."""
        totals = self.totals
        return max(totals, key=lambda phase: totals[phase])


class Planner:
    """Memory plans of one configuration.

    Traced passes are cached, so plans for further clusters cost little.
    """

    def __init__(self, plan_input: PlanInput) -> None:
        self.plan_input = plan_input
        networks = MetaNetworks.of(plan_input)
        self.counts = networks.counts(
            muon=plan_input.optimization.muon is not None, hindsight=plan_input.hindsight
        )
        self._gathered = networks.gathered_bytes(plan_input.bf16)
        self._peaks: dict[tuple[int, bool], PhasePeaks] = {}

    def with_groups(self, num_groups: int) -> Planner:
        """Return a planner of the same run with another number of groups and the same cache."""
        other = copy.copy(self)
        rollout = replace(self.plan_input.rollout, num_groups=num_groups)
        other.plan_input = replace(self.plan_input, rollout=rollout)
        return other

    def plan(self, cluster: Cluster) -> MemoryPlan:
        """Plan the memory of one process."""
        rows = self.plan_input.rows(cluster)
        key = rows, self.plan_input.captures_steps(cluster)
        if key not in self._peaks:
            self._peaks[key] = PhasePeaks.of(self.plan_input, rows, is_captured=key[1])
        return plan_memory(self.plan_input, self.counts, self._peaks[key], cluster, self._gathered)


def plan_memory(
    plan_input: PlanInput,
    counts: ParameterCounts,
    peaks: PhasePeaks,
    cluster: Cluster,
    gathered: GatheredBytes,
) -> MemoryPlan:
    """Plan the memory of one process.

    When sharded, weights, gradients and optimizer moments are divided by the number of shards.
    The policy is unsharded during the rollout; in the other phases layers are gathered and freed
    again. Autocast makes no copies of weights that are gathered in its dtype. Muon's step, which
    gathers gradient and moment of one matrix at a time, is a phase of its own.

    Args:
        plan_input: The configuration.
        counts: Parameter counts of the networks.
        peaks: Peak bytes of passes, optimizer step and key-value cache, for one process's
            trajectories.
        cluster: The processes.
        gathered: Bytes of the weights that are unsharded at the same time.
    """
    shards = cluster.shards
    always = {
        "weights": counts.weight_bytes // shards,
        "optimizer": counts.moment_bytes // shards,
        "batches": _batch_bytes(plan_input, cluster),
    }
    gradients = {"gradients": counts.gradient_bytes // shards}
    whole_policy = gathered.policy if shards > 1 else 0
    layers = {"gathered weights": gathered.during_pass if shards > 1 else 0}
    with_copies = shards == 1

    def parts(peak: PassPeak) -> dict[str, int]:
        copies = peak.autocast_copies if with_copies else 0
        return {"autocast copies": copies, "activations": peak.activations}

    phases = {
        "rollout": {
            **always,
            "gathered weights": whole_policy,
            "KV cache": peaks.kv_cache,
            **parts(peaks.rollout),
        },
        "score pass": {**always, **layers, **parts(peaks.score_pass)},
        "update": {**always, **gradients, **layers, **parts(peaks.update)},
    }
    if peaks.step is not None:
        phases["optimizer step"] = {
            **always,
            **gradients,
            "gathered weights": peaks.step.whole if shards > 1 else 0,
            "activations": peaks.step.temporary,
        }
    return MemoryPlan(phases)


def _batch_bytes(plan_input: PlanInput, cluster: Cluster) -> int:
    """Return the bytes of the trajectories' tensors, which exist as a rollout and once more as
    optimizer batches."""
    rows = plan_input.rows(cluster) * plan_input.sequences
    tokens = rows * plan_input.rollout.max_context
    return 2 * BATCH_BYTES_PER_TOKEN * tokens
