"""Put a plan together: weights, memory, work, traffic and seconds of one run."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from ragen_pl.cli.plan.devices import Device
from ragen_pl.cli.plan.memory import Memory, Passes, plan_memory
from ragen_pl.cli.plan.networks import Counts, MetaNetworks
from ragen_pl.cli.plan.setting import Cluster, PlanInput
from ragen_pl.cli.plan.work import (
    CommBytes,
    Flops,
    FlopsPerToken,
    Seconds,
    count_traffic,
    count_work,
    expect_seconds,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold what one process of a run needs, and what an iteration costs."""

    counts: Counts
    memory: Memory
    work: Flops
    traffic: CommBytes
    seconds: Seconds


class Planner:
    """Plan runs of one setting; what is traced is kept, so that more clusters cost little."""

    def __init__(self, setting: PlanInput) -> None:
        self.setting = setting
        networks = MetaNetworks.of(setting)
        self.counts, self._gathered = networks.counts(), networks.gathered(setting.bf16)
        self._products = FlopsPerToken.of(networks)
        self._passes: dict[int, Passes] = {}

    def with_groups(self, num_groups: int) -> Planner:
        """Return a planner of the same run with so many starts; the traces of passes are shared."""
        other = copy.copy(self)
        rollout = replace(self.setting.rollout, num_groups=num_groups)
        other.setting = replace(self.setting, rollout=rollout)
        return other

    def memory(self, cluster: Cluster) -> Memory:
        """Plan the memory of a process."""
        passes = self._passes_of(cluster)
        return plan_memory(self.setting, self.counts, passes, cluster, self._gathered)

    def plan(self, cluster: Cluster, device: Device) -> Plan:
        """Plan memory and time."""
        setting, counts, passes = self.setting, self.counts, self._passes_of(cluster)
        work = count_work(setting, self._products)
        traffic = count_traffic(setting, counts, self._gathered, cluster)
        # What is multiplied with: autocast's copies where there are some, or as many bytes that are
        # gathered in their type, else the weights.
        reads = (passes.collect.copies or counts.policy_bytes) + passes.cache / 2
        seconds = expect_seconds(setting, work, traffic, reads, cluster, device)
        return Plan(counts, self.memory(cluster), work, traffic, seconds)

    def _passes_of(self, cluster: Cluster) -> Passes:
        rows = self.setting.rows(cluster)
        if rows not in self._passes:
            self._passes[rows] = Passes.of(self.setting, rows)
        return self._passes[rows]
