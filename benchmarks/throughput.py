"""Times of an iteration's phases beside the machine's limits, and how their cost grows.

``python benchmarks/throughput.py OUT.json [--models tiny 10m] [--dtype fp32] [--no-growth]``

Prints, for each shape (random weights), seconds, tokens/s and the ratio to the limit measured in
the same run (``iteration.limits``): at 1.00 a phase is as fast as a large matrix product, or for
decoding a copy of the weights, allows. Then how cost grows with turns, group size, vocabulary and
model size. Writes all of it as JSON. ``--device cuda`` takes the shapes 0.5b to 7b too.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ragen_pl.runtime.wait_policy import limit_spinning

    limit_spinning()  # before PyTorch is loaded, as the command does

import torch

from benchmarks.iteration import PHASES, Bench, Iteration, limits, phase_tokens
from benchmarks.memory import (
    device_peak_mebibytes,
    forget_device_peak,
    forget_peak,
    peak_mebibytes,
)
from benchmarks.roofline import copy_bandwidth, gemm_rate, timed
from benchmarks.workload import MODELS, RandomModel, Workload, pieces
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.ops.chunked_head import chunked_log_prob_and_entropy
from ragen_pl.report.tables import format_table
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.runtime.allocator import retain_freed_memory

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WORKLOADS = {"tiny": Workload(), "10m": Workload(4, 4)}
LARGE = Workload(num_groups=2, group_size=2, turns=2)
"""The workload of every shape without one of its own."""
TURNS, MEMBERS = (5, 10, 20, 50), (1, 4, 16)
VOCABULARIES = (500, 5_000, 50_000, 150_000)


def phases(name: str, bench: Bench, repetitions: int) -> dict[str, Any]:
    """Measure the phases of a model's iteration."""
    dtype, device = bench.dtype, bench.device
    iteration = Iteration(bench)
    forget_device_peak(device)
    seconds, rollout = iteration.medians(repetitions)
    peak, least = device_peak_mebibytes(device), limits(bench, rollout)
    tokens = phase_tokens(bench.workload, rollout)
    return {
        "model": name,
        "parameters": sum(p.numel() for p in iteration.policy.parameters()),
        "workload": asdict(bench.workload),
        "seconds": seconds,
        "tokens_per_second": {phase: tokens[phase] / seconds[phase] for phase in PHASES},
        "of_the_limit": {phase: least[phase] / seconds[phase] for phase in least},
        "trajectories_per_second": bench.workload.trajectories / sum(seconds.values()),
        "gemm_per_second": gemm_rate(bench.model, 2048, dtype, device),
        "copied_bytes_per_second": copy_bandwidth(device),
        "peak_mebibytes": peak,
    }


def bench_of(name: str, args: argparse.Namespace) -> Bench:
    """Return the setting of a model's measurement."""
    workload = WORKLOADS.get(name, LARGE)
    return Bench(MODELS[name], workload, DTYPES[args.dtype], args.device, compile=args.compile)


def play(workload: Workload, model: RandomModel) -> dict[str, float]:
    """Play once in float32 and count the tokens the engine reads."""
    language = TrainableModel(model, None, False, 0).build(pieces())
    engine = InProcessSampler(
        language.model, stop_id=-1, seed=0, max_context=workload.config.max_context
    )
    seconds = timed(lambda: workload.play(language, engine, 0))
    return {
        "seconds": seconds,
        "tokens_read": engine.tokens_processed,
        "seconds_per_trajectory": seconds / workload.trajectories,
        "tokens_per_second": engine.tokens_processed / seconds,
    }


def project(vocabulary: int, tokens: int = 256, width: int = 64) -> dict[str, float]:
    """Score tokens against a vocabulary and take the gradient, once."""
    states = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,))

    def step() -> None:
        scores = chunked_log_prob_and_entropy(states, weight, None, targets)
        (scores[0].sum() + scores[1].sum()).backward()  # type: ignore[no-untyped-call]

    forget_peak()
    before = peak_mebibytes()
    seconds = timed(step)
    return {"seconds": seconds, "added_mebibytes": peak_mebibytes() - before}


def growth(largest: str) -> dict[str, dict[str, dict[str, float]]]:
    """Measure cost over one quantity at a time, on a CPU, for the tiny model up to ``largest``."""
    tiny, base = MODELS["tiny"], Workload(num_groups=2, group_size=4)
    play(base, tiny)  # what is slow the first time
    sizes = list(MODELS)[: list(MODELS).index(largest) + 1]
    return {
        "turns": {str(turns): play(replace(base, turns=turns), tiny) for turns in TURNS},
        "members": {str(n): play(replace(base, group_size=n), tiny) for n in MEMBERS},
        "vocabulary": {str(words): project(words) for words in VOCABULARIES},
        "model": {name: play(LARGE, MODELS[name]) for name in sizes},
    }


def phase_table(results: list[dict[str, Any]]) -> str:
    """Return a row per model and phase, and a line per model."""
    rows = [["model", "phase", "seconds", "tokens/s", "of the limit"]]
    for result in results:
        for phase in PHASES:
            share = result["of_the_limit"].get(phase)
            rows.append(
                [
                    result["model"],
                    phase,
                    f"{result['seconds'][phase]:.3f}",
                    f"{result['tokens_per_second'][phase]:,.0f}",
                    "–" if share is None else f"{share:.2f}",
                ]
            )
    lines = [format_table(rows)]
    for result in results:
        lines.append(
            f"{result['model']}: {result['trajectories_per_second']:.2f} trajectories/s, peak "
            f"{result['peak_mebibytes']:,.0f} MiB; limits {result['gemm_per_second'] / 1e9:,.0f} "
            f"GFLOP/s, {result['copied_bytes_per_second'] / 1e9:,.1f} GB/s"
        )
    return "\n".join(lines)


def growth_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return a row per quantity and value."""
    rows = [["over", "value", "seconds", "tokens read", "seconds per trajectory", "added MiB"]]
    for over, by_value in results.items():
        for value, row in by_value.items():
            cells = [
                f"{row[key]:,.{digits}f}" if key in row else "–"
                for key, digits in (
                    ("seconds", 3),
                    ("tokens_read", 0),
                    ("seconds_per_trajectory", 3),
                    ("added_mebibytes", 0),
                )
            ]
            rows.append([over, value, *cells])
    return format_table(rows)


def main(given: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["tiny", "10m"])
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--compile", action="store_true", help="compile layers, as model.optimization.compile does"
    )
    parser.add_argument("--no-growth", action="store_true")
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    if args.device == "cpu":
        retain_freed_memory()
    results: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": args.threads,
        "dtype": args.dtype,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "compiled": args.compile,
        "phases": [phases(name, bench_of(name, args), args.repetitions) for name in args.models],
    }
    print(phase_table(results["phases"]))
    if not args.no_growth:
        results["growth"] = growth(args.models[-1] if args.device == "cpu" else "tiny")
        print("\n" + growth_table(results["growth"]))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
