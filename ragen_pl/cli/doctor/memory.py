"""The memory that a run is planned to need, beside what this machine has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ragen_pl.cli.configured_parts import ConfiguredParts
from ragen_pl.cli.plan.command import (
    architecture_of,
    check_supported,
    cluster_of,
    plan_input_of,
)
from ragen_pl.cli.plan.devices import DEVICES
from ragen_pl.cli.plan.memory import Planner
from ragen_pl.cli.plan.render import remedies_for
from ragen_pl.errors import ConfigError

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """A memory plan's peak and the memory there is, in bytes, for the processes that share it."""

    needed: int
    there: int
    free: int
    phase: str
    """The phase with the peak."""
    place: str
    """Whose memory it is, for a reader."""
    remedies: tuple[str, ...]

    @property
    def is_too_much(self) -> bool:
        """Whether the machine could not hold the run even if nothing else ran on it."""
        return self.needed > self.there


def planner_of(parts: ConfiguredParts) -> Planner:
    """Return the planner of a run on this machine's kind of device; it builds no weights.

    Raises:
        ConfigError: when the plan cannot count this configuration.
    """
    device = "gpu" if _on_gpu(parts) else "cpu"
    return Planner(plan_input_of(parts, architecture_of(parts), device))


def _on_gpu(parts: ConfiguredParts) -> bool:
    return parts.trainer_config.accelerator != "cpu" and torch.cuda.is_available()


def memory_need(parts: ConfiguredParts, planner: Planner) -> MemoryNeed:
    """Plan the memory of a run.

    Raises:
        ConfigError: when the plan cannot count this configuration.
    """
    try:
        cluster = cluster_of(parts.trainer_config)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    check_supported(parts, cluster)
    memory = planner.plan(cluster)
    if _on_gpu(parts):
        free, there = torch.cuda.mem_get_info()
        needed, place = memory.peak + DEVICES["h100"].runtime, torch.cuda.get_device_name()
    else:  # all processes of a machine share its memory
        there, free = machine_memory()
        needed = cluster.devices * (memory.peak + DEVICES["cpu"].runtime)
        place = "this machine"
    remedies = tuple(remedies_for(planner.plan_input, cluster, memory))
    return MemoryNeed(needed, there, free, memory.peak_phase, place, remedies)


def machine_memory() -> tuple[int, int]:
    """Return the bytes of memory that this process may use at most, and those that are free now."""
    known = {}
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        known[name] = int(rest.split()[0]) * 1024
    there = known["MemTotal"]
    for path in _CGROUP_LIMITS:
        if path.is_file() and (text := path.read_text(encoding="utf-8").strip()).isdigit():
            there = min(there, int(text))
    return there, min(there, known.get("MemAvailable", there))
