"""Rollouts beside a loop over ``model.generate``, training beside TRL, as ``vs_trl.py`` has them.

Ratios are ours to the other's. TRL is left out where it is not installed; the share of the
arithmetic limit is measured all the same. Shapes above 135M, and adapters, are trained only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu_day_parts.catalog import BESIDE_TRL
from benchmarks.gpu_day_parts.device import has_autocast, open_device
from benchmarks.gpu_day_parts.part import Day, Record, SkipPart
from benchmarks.gpu_day_parts.speed import BYTES_TO_TRAIN, ROOM, parameters
from benchmarks.vs_trl import DTYPES, WORKLOADS, Pace, against_trl, limit, rollouts, training
from benchmarks.workload import MODELS, RandomModel, Workload
from ragen_pl.models.lora import LoRA

NEEDS = ("trl", "datasets")
TINY = Workload(num_groups=1, group_size=2, turns=2, words=4, response=3)
ADAPTERS = LoRA(rank=16, alpha=32)
"""As entry 28 of the log has them."""
_LORA = "_lora"
_SHORT = WORKLOADS["135m"]
"""The workloads of a model that has none of its own."""


@dataclass(frozen=True)
class Race:
    """What is compared.

    Args:
        name: Name, within the figures.
        shape: Shape of the model.
        workloads: The workload that is trained on, and a longer one that is only played.
        repetitions: Times that each side is measured.
        lora: Adapters on frozen weights; None trains all weights.
        plays: Whether rollouts alone are compared.
        ways: Ways of training.
    """

    name: str
    shape: RandomModel
    workloads: tuple[Workload, Workload]
    repetitions: int
    lora: LoRA | None
    plays: bool
    ways: Sequence[str]

    @property
    def needed(self) -> int:
        """Bytes of weights, gradients and moments of both sides, which take turns."""
        return 2 * parameters(self.shape) * (4 if self.lora else BYTES_TO_TRAIN)

    def check_room(self, total: int) -> None:
        """Check that both sides fit into a device's memory.

        Raises:
            SkipPart: when they do not.
        """
        if self.needed > ROOM * total:
            raise SkipPart(
                f"both sides' weights and what trains them are {self.needed / 2**30:.0f} GiB"
            )


def race(day: Day, name: str) -> Race:
    """Return the comparison of a name: a model's, with ``_lora`` where it has adapters."""
    model, lora = name.removesuffix(_LORA), ADAPTERS if name.endswith(_LORA) else None
    shape = MODELS["tiny" if day.tiny else model]
    if day.tiny:
        shape = replace(shape, hidden_size=32, num_heads=2)
    if day.kind == "cuda":  # as TRL and generate have it; drawing large weights there takes no time
        shape = replace(shape, attention="sdpa", device="cuda" if name in BESIDE_TRL else "cpu")
    ways = ["bf16"] if name in BESIDE_TRL else ["fp32", "bf16"]
    if name == "135m" and day.kind == "cuda":  # compiling takes a minute
        ways.append("bf16 compiled")
    return Race(
        name=name,
        shape=shape,
        workloads=(TINY, replace(TINY, turns=3)) if day.tiny else WORKLOADS.get(model, _SHORT),
        repetitions=1 if day.tiny else 3,
        lora=lora,
        plays=name in WORKLOADS,
        ways=ways,
    )


def run(day: Day, record: Record, name: str) -> None:
    """Measure with one of the models."""
    device = open_device(day)
    chosen = race(day, name)
    if device.type == "cuda":
        chosen.check_room(torch.cuda.get_device_properties(device).total_memory)
    if chosen.plays:
        _play(record, day, chosen, list(DTYPES) if has_autocast(device) else ["fp32"])
    if has_autocast(device):
        _train(record, day, chosen)
    else:
        record.note("training is left out: Lightning and TRL choose their device themselves")


def _play(record: Record, day: Day, chosen: Race, dtypes: Sequence[str]) -> None:
    for turns, workload in zip(("short", "long"), chosen.workloads, strict=True):
        for dtype in dtypes:
            rates = rollouts(workload, chosen.shape, dtype, chosen.repetitions, day.device)
            name = f"beside/{chosen.name}/rollout_{turns}/{dtype}"
            record.figure(name, rates["ours"], "trajectories/s")
            record.figure(f"{name}/to_generate", rates["ours"] / rates["generate"])


def _train(record: Record, day: Day, chosen: Race) -> None:
    """Record rollout and update in every way, one at a time: what was measured is kept where the
    next takes too long."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    names = ["ours"] if missing else ["ours", "trl"]
    if missing:
        record.note(f"TRL left out, not installed: {', '.join(missing)}")
    played, shape, threads = chosen.workloads[0], chosen.shape, torch.get_num_threads()
    trained: dict[str, Pace] = {}
    for way in chosen.ways:
        trained |= training(played, shape, names, chosen.repetitions, threads, [way], chosen.lora)
        rate = trained[f"ours {way}"].rate
        most = limit(played, shape, way.split()[0], day.device, chosen.lora)
        name = f"beside/{chosen.name}/training/{way.replace(' ', '_')}"
        record.figure(name, rate, "trajectories/s")
        record.figure(f"{name}/of_limit", rate / most)
        if f"trl {way}" in trained:
            record.figure(f"{name}/to_trl", rate / trained[f"trl {way}"].rate)
    for what, ratio in against_trl(trained).items():
        if "best" in what:
            best = what.partition(", ")[2].replace(" ", "_")
            record.figure(f"beside/{chosen.name}/training/{best}/to_trl", ratio)
