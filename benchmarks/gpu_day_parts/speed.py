"""The speed of one shape with random weights: decoding against the bandwidth, updates against the
arithmetic, with all weights and with adapters.

Figures are ``speed/<shape>/<variant>/<figure>``. Each variant is built, measured and dropped, and
one that does not fit is noted and left out.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import torch

from benchmarks.gpu_day_parts.device import has_autocast, open_device, peak_operations
from benchmarks.gpu_day_parts.part import Day, Record
from benchmarks.iteration import Bench, Iteration, limits
from benchmarks.roofline import copy_bandwidth, forward_operations, sizes_of
from benchmarks.workload import MODELS, RandomModel, Workload
from ragen_pl.cli.plan.seconds import training_passes
from ragen_pl.models.lora import LoRA
from ragen_pl.types import RolloutBatch

DIALOGUE = Workload(num_groups=4, group_size=16, turns=2, words=64, response=128)
"""64 trajectories of two turns: enough rows for decoding to pay, enough tokens for large
products."""
TINY_DIALOGUE = Workload(num_groups=1, group_size=2, turns=2, words=4, response=4)
ADAPTERS = LoRA(rank=64, alpha=64)
BYTES_TO_TRAIN = 16
"""Bytes of a weight with its gradient and AdamW's moments, in float32."""
ROOM = 0.75
"""Share of the memory that weights and their gradients may take."""
ONCE = "0.5b"
"""The shape at which captured decoding is compared in every way."""


@dataclass(frozen=True)
class Variant:
    """One way of running a shape.

    Args:
        name: Name, within the figures.
        lora: Whether adapters are trained on a frozen base in bfloat16.
        cuda_graphs: Whether steps of decoding are captured.
        compile: Whether layers are compiled where they score and learn.
        fused: Whether the sampler is the fused decoder, with this package's attention.
        trains: Whether the update is measured, too.
    """

    name: str
    lora: bool = False
    cuda_graphs: bool = False
    compile: bool = False
    fused: bool = False
    trains: bool = True


def variants(shape: str) -> list[Variant]:
    """Return the ways of running a shape, the most telling first."""
    found = [
        Variant("lora", lora=True),
        Variant("full"),
        Variant("lora_graphs", lora=True, cuda_graphs=True, trains=False),
    ]
    if shape != ONCE:
        return found
    return [
        *found,
        Variant("full_graphs", cuda_graphs=True, trains=False),
        Variant("fused", fused=True, trains=False),
        Variant("fused_graphs", fused=True, cuda_graphs=True, trains=False),
        Variant("lora_fused_graphs", lora=True, fused=True, cuda_graphs=True, trains=False),
    ]


COMPILED = [
    Variant("full_written"),
    Variant("full_compiled", compile=True),
    Variant("lora_written", lora=True),
    Variant("lora_compiled", lora=True, compile=True),
]
"""Layers as they are written, and compiled."""


def run(day: Day, record: Record, shape: str, ways: str = "usual") -> None:
    """Measure every variant that fits and that the device can run.

    Args:
        day: Where and how the parts run.
        record: Where the figures go.
        shape: Name of the shape.
        ways: ``usual``, or ``compiled`` for compiled layers, which take a minute each.
    """
    device = open_device(day)
    base = MODELS["tiny"] if day.tiny else MODELS[shape]
    bandwidth = copy_bandwidth(str(device), 4 if day.tiny else 1024)
    rates: dict[str, dict[str, float]] = {}
    try:
        for variant in COMPILED if ways == "compiled" else variants(shape):
            name = f"speed/{shape}/{variant.name}"
            reason = _refused(day, device, base, variant)
            if reason:
                record.note(f"{name} left out: {reason}")
                continue
            bench = bench_of(day, base, variant)
            try:
                rates[variant.name] = _measure(record, name, bench, variant, bandwidth)
            except (torch.OutOfMemoryError, ValueError) as error:  # or it cannot be captured
                record.note(f"{name} left out: {str(error).splitlines()[0]}")
            gc.collect()  # modules refer to each other in circles
            if device.type == "cuda":
                torch.cuda.empty_cache()
    finally:
        _compare(record, shape, rates)  # also where a later variant fails


def bench_of(day: Day, base: RandomModel, variant: Variant) -> Bench:
    """Return the setting of a variant."""
    has_bf16 = has_autocast(torch.device(day.device))
    model = replace(
        base,
        attention=base.attention if variant.fused else "sdpa",
        dtype="bfloat16" if variant.lora and has_bf16 else "float32",
        device="cuda" if day.kind == "cuda" else "cpu",
    )
    return Bench(
        model=model,
        workload=TINY_DIALOGUE if day.tiny else DIALOGUE,
        dtype=torch.bfloat16 if has_bf16 else torch.float32,
        device=day.device,
        token_budget=512 if day.tiny else 8192,
        compile=variant.compile,
        lora=ADAPTERS if variant.lora else None,
        critic=False,
        checkpointing=variant.trains and not variant.compile and parameters(base) > 1e9,
        cuda_graphs=variant.cuda_graphs,
    )


def parameters(model: RandomModel) -> int:
    """Count the weights of a shape whose embeddings are tied."""
    sizes = sizes_of(model)
    return sizes.layer_weights + sizes.head_weights


def _refused(day: Day, device: torch.device, model: RandomModel, variant: Variant) -> str:
    """Say why a variant cannot be run here; empty where it can."""
    if variant.cuda_graphs and device.type != "cuda":
        return "CUDA graphs need a CUDA device"
    if variant.compile and (device.type != "cuda" or day.tiny):
        return "compiling is measured on a CUDA device at full size alone"
    if device.type != "cuda" or variant.lora:
        return ""
    total = torch.cuda.get_device_properties(device).total_memory
    needed = parameters(model) * (BYTES_TO_TRAIN if variant.trains else 4)
    if needed <= ROOM * total:
        return ""
    return f"weights, gradients and moments alone are {needed / 2**30:.0f} GiB"


def _measure(
    record: Record, name: str, bench: Bench, variant: Variant, bandwidth: float
) -> dict[str, float]:
    """Record a variant's figures; return its rates."""
    iteration = Iteration(bench)
    if variant.trains:
        seconds, rollout = iteration.medians(2 if bench.kind == "cuda" else 1)
    else:
        seconds, rollout = _played(iteration), None
    figures = decoding(bench, seconds, bandwidth)
    if rollout is not None:
        figures |= updating(bench, seconds, rollout)
    for key, (value, unit) in figures.items():
        record.figure(f"{name}/{key}", value, unit)
    if bench.kind == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
        record.figure(f"{name}/peak_memory", peak, "GiB")
        torch.cuda.reset_peak_memory_stats()
    return {key: value for key, (value, _) in figures.items()}


def _played(iteration: Iteration) -> dict[str, float]:
    """Return the medians of two rollouts' phases, after one to warm up."""
    runs = [iteration.play()[0] for _ in range(3)][1:]
    return {phase: median(run[phase] for run in runs) for phase in runs[0]}


Measured = dict[str, tuple[float, str]]


def decoding(bench: Bench, seconds: Mapping[str, float], bandwidth: float) -> Measured:
    """Return decoding's figures: its bound reads all weights, and the cache, once per step."""
    workload, sizes = bench.workload, sizes_of(bench.model)
    steps = workload.turns * workload.response
    rows, context = workload.trajectories, workload.length / 2
    bound = steps * sizes.step_bytes(bench.dtype.itemsize, rows, context) / bandwidth
    rollout = seconds["prefill"] + seconds["decode"] + seconds["env"]
    return {
        "decode": (workload.sampled / seconds["decode"], "tokens/s"),
        "decode_step": (1000 * seconds["decode"] / steps, "ms"),
        "decode_of_bandwidth": (bound / seconds["decode"], ""),
        "rollout": (workload.sampled / rollout, "tokens/s"),
    }


def updating(bench: Bench, seconds: Mapping[str, float], rollout: RolloutBatch) -> Measured:
    """Return the update's figures: its operations per second, as shares of what a large product
    reaches in this run and of the data sheet's peak (MFU)."""
    least = limits(bench, rollout)
    tokens = int(rollout.attention_mask.sum())
    context = tokens / len(rollout) / 2
    forward = forward_operations(bench.model, tokens, bench.workload.sampled, context)
    rate = training_passes(is_frozen=bench.lora is not None) * forward / seconds["policy"]
    found: Measured = {
        "prefill_of_products": (least["prefill"] / seconds["prefill"], ""),
        "score_pass_of_products": (least["score_pass"] / seconds["score_pass"], ""),
        "update": (tokens / seconds["policy"], "tokens/s"),
        "update_rate": (rate / 1e12, "TFLOP/s"),
        "update_of_products": (least["policy"] / seconds["policy"], ""),
    }
    peak = peak_operations(torch.device(bench.device))
    if peak is not None:
        found["update_mfu"] = (rate / peak, "")
    return found


_COMPARISONS = {
    "graphs_gain": ("lora_graphs", "lora", "decode"),
    "fused_gain": ("fused", "full", "decode"),
    "fused_graphs_gain": ("fused_graphs", "fused", "decode"),
    "lora_fused_gain": ("lora_fused_graphs", "lora_graphs", "decode"),
    "compile_gain": ("full_compiled", "full_written", "update"),
    "lora_compile_gain": ("lora_compiled", "lora_written", "update"),
}
"""By figure: the faster variant by expectation, the other, and the rate that is compared."""


def _compare(record: Record, shape: str, rates: Mapping[str, Mapping[str, float]]) -> None:
    for figure, (one, other, rate) in _COMPARISONS.items():
        if one in rates and other in rates:
            record.figure(f"speed/{shape}/{figure}", rates[one][rate] / rates[other][rate])
