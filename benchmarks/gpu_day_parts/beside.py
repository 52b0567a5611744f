"""Rollouts beside a loop over ``model.generate``, training beside TRL, as ``vs_trl.py`` has them.

Ratios are ours to the other's. TRL is left out where it is not installed; the share of the
arithmetic limit is measured all the same.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import torch

from benchmarks.gpu_day_parts.device import has_autocast, open_device
from benchmarks.gpu_day_parts.part import Day, Record
from benchmarks.vs_trl import DTYPES, WAYS, WORKLOADS, against_trl, limit, rollouts, training
from benchmarks.workload import MODELS, RandomModel, Workload

NEEDS = ("trl", "datasets")
TINY = Workload(num_groups=1, group_size=2, turns=2, words=4, response=3)
COMPILED = {"135m"}
"""Models whose compiled update is compared, too: compiling takes a minute."""


def run(day: Day, record: Record, model: str) -> None:
    """Measure with one of the models."""
    device = open_device(day)
    shape = replace(MODELS[model], hidden_size=32, num_heads=2) if day.tiny else MODELS[model]
    if device.type == "cuda":  # as TRL and generate have it
        shape = replace(shape, attention="sdpa")
    workloads = (TINY, replace(TINY, turns=3)) if day.tiny else WORKLOADS[model]
    repetitions = 1 if day.tiny else 3
    for turns, workload in zip(("short", "long"), workloads, strict=True):
        for dtype in DTYPES if has_autocast(device) else ("fp32",):
            rates = rollouts(workload, shape, dtype, repetitions, day.device)
            name = f"beside/{model}/rollout_{turns}/{dtype}"
            record.figure(name, rates["ours"], "trajectories/s")
            record.figure(f"{name}/to_generate", rates["ours"] / rates["generate"])
    if has_autocast(device):
        _train(record, day, model, shape, workloads[0], repetitions)
    else:
        record.note("training is left out: Lightning and TRL choose their device themselves")


def _train(
    record: Record, day: Day, model: str, shape: RandomModel, played: Workload, repetitions: int
) -> None:
    """Record rollout and update in every way, one at a time: what was measured is kept where the
    next takes too long."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    names = ["ours"] if missing else ["ours", "trl"]
    if missing:
        record.note(f"TRL left out, not installed: {', '.join(missing)}")
    trained: dict[str, float] = {}
    for way in WAYS:
        if "compiled" in way and not (day.kind == "cuda" and model in COMPILED):
            continue
        trained |= training(played, shape, names, repetitions, torch.get_num_threads(), [way])
        rate = trained[f"ours {way}"]
        most = limit(played, shape, way.split()[0], day.device)
        name = f"beside/{model}/training/{way.replace(' ', '_')}"
        record.figure(name, rate, "trajectories/s")
        record.figure(f"{name}/of_limit", rate / most)
        if f"trl {way}" in trained:
            record.figure(f"{name}/to_trl", rate / trained[f"trl {way}"])
    for what, ratio in against_trl(trained).items():
        if "best" in what:
            best = what.partition(", ")[2].replace(" ", "_")
            record.figure(f"beside/{model}/training/{best}/to_trl", ratio)
