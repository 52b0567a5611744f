"""Speed beside a plain loop over ``model.generate`` and beside TRL's ``GRPOTrainer``.

``python benchmarks/vs_trl.py OUT.json [--model tiny] [--lora RANK] [--ways bf16] [--skip trl]``

Model shape, environment, templates, groups, turns and tokens are the same (fixed by
``workload.py``). The sides alternate in one process; times are medians after a warm-up. Prints
three tables and writes JSON: rollouts alone at 5 and at 30 turns; rollout and update, with the
seconds of each, relative to the arithmetic limit measured in the same run; peak memory, each side
in a process of its own. TRL comes with the extra ``bench``. The figures need a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ragen_pl.runtime.wait_policy import limit_spinning

    limit_spinning()  # before PyTorch is loaded, as the command does

import torch

from benchmarks.memory import peak_mebibytes
from benchmarks.roofline import alternate, forward_operations, gemm_rate, middle
from benchmarks.samplers import Setting, ours, trl
from benchmarks.workload import MODELS, RandomModel, ReadAgain, Workload, pieces
from ragen_pl.cli.plan.seconds import training_passes
from ragen_pl.models.lora import LoRA
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.report.tables import format_table
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.runtime.allocator import retain_freed_memory

WORKLOADS = {
    "tiny": (Workload(), Workload(num_groups=4, group_size=4, turns=30)),
    "135m": (
        Workload(num_groups=2, group_size=4, turns=3),
        Workload(num_groups=1, group_size=4, turns=6),
    ),
}
"""By model: the workload that is trained on, and a longer one that is only played."""
TRAINERS: dict[str, Callable[[Setting], Any]] = {"ours": ours, "trl": trl}
DTYPES = {"fp32": False, "bf16": True}
WAYS = {"fp32": (False, False), "bf16": (True, False), "bf16 compiled": (True, True)}
"""Ways of training: whether matrix products are in bfloat16, and whether the model is compiled."""


def rollouts(
    workload: Workload,
    model: RandomModel,
    dtype: str,
    repetitions: int,
    device: str = "cpu",
    lora: LoRA | None = None,
) -> dict[str, float]:
    """Return trajectories per second of the engine and of the plain loop."""
    language = TrainableModel(model, lora, False, 0).build(pieces())  # as in training
    plain = model.build(pieces(), 0)
    if lora is not None:
        lora.attach(plain.model, 0)
    for each in (language.model, plain.model):
        each.to(device)  # type: ignore[arg-type]
    kind = torch.device(device).type
    engine = InProcessSampler(
        language.model, stop_id=-1, seed=0, max_context=workload.config.max_context
    )
    again = ReadAgain(plain.model)
    count = iter(range(1 << 30))

    def context() -> AbstractContextManager[object]:
        return torch.autocast(kind, torch.bfloat16) if DTYPES[dtype] else nullcontext()

    def play_engine() -> None:
        engine.reset()  # as after an update
        with context():
            workload.play(language, engine, next(count))

    def play_again() -> None:
        with context():
            workload.play(plain, again, next(count))

    seconds = middle(alternate({"ours": play_engine, "generate": play_again}, repetitions))
    return {name: workload.trajectories / value for name, value in seconds.items()}


class Pace(NamedTuple):
    """How fast one side trains."""

    rate: float
    """Trajectories per second, of rollout and update."""
    rollout: float
    """Seconds of a step's rollout."""
    update: float
    """Seconds of everything else: log-probs, gradient, optimizer, bookkeeping."""


def training(
    workload: Workload,
    model: RandomModel,
    names: list[str],
    repetitions: int,
    threads: int,
    ways: Sequence[str] = tuple(WAYS),
    lora: LoRA | None = None,
) -> dict[str, Pace]:
    """Return the pace of rollout and update, by side and way of training."""
    loops = {
        f"{name} {way}": TRAINERS[name](
            Setting(workload, model, bf16, compiled, repetitions + 2, threads, lora)
        )
        for name in names
        for way, (bf16, compiled) in WAYS.items()
        if way in ways
    }
    for loop in loops.values():
        loop.step()  # sets the framework up; ``alternate`` adds a warm-up of its own
    seconds = alternate({name: loop.step for name, loop in loops.items()}, repetitions)
    paces = {}
    for name, whole in middle(seconds).items():
        rollout = median(loops[name].rollout_seconds[-repetitions:])
        paces[name] = Pace(workload.trajectories / whole, rollout, whole - rollout)
    return paces


def limit(
    workload: Workload,
    model: RandomModel,
    dtype: str,
    device: str = "cpu",
    lora: LoRA | None = None,
) -> float:
    """Return the trajectories per second at which all the arithmetic of an iteration would run at
    the rate of a large matrix product: each token read once and trained on. Frozen weights have no
    gradients of their own, and what adapters add is left out."""
    tokens, context = workload.trajectories * workload.length, workload.length / 2
    forward = forward_operations(model, tokens, workload.sampled, context)
    kind = torch.bfloat16 if DTYPES[dtype] else torch.float32
    passes = 1 + training_passes(is_frozen=lora is not None)
    return workload.trajectories * gemm_rate(model, 2048, kind, device) / (passes * forward)


def measure_memory(which: str, model: str, threads: int, lora: LoRA | None = None) -> float:
    """Return by how many MiB two iterations raise a fresh process's peak, without set-up."""
    command = [sys.executable, __file__, "-", "--model", model, "--threads", str(threads)]
    command += ["--lora", str(lora.rank)] if lora is not None else []
    done = subprocess.run(
        [*command, "--alone", which],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    return float(done.stdout.split()[-1])


def _alone(
    which: str, workload: Workload, model: RandomModel, threads: int, lora: LoRA | None
) -> None:
    """Print the peak that one side adds to its imports and weights."""
    name, dtype = which.split()
    steps = TRAINERS[name](Setting(workload, model, DTYPES[dtype], False, 2, threads, lora))
    before = peak_mebibytes()
    steps.step()
    steps.step()
    print(peak_mebibytes() - before)


def table(results: dict[str, Any]) -> str:
    """Return the results as tables."""
    rows = [["rollout alone", "type", "ours /s", "generate /s", "ratio"]]
    for row in results["rollout"]:
        rates = (row["ours"], row["generate"])
        rows.append(
            [
                f"{row['turns']} turns",
                row["dtype"],
                *(f"{rate:.2f}" for rate in rates),
                f"{rates[0] / rates[1]:.2f}",
            ]
        )
    lines = [format_table(rows), ""]
    peaks = results["peak_mebibytes"]
    titles = ["trajectories /s", "rollout s", "update s", "of the limit", "peak MiB"]
    rows = [["rollout and update", *titles]]
    for name, pace in results["training"].items():
        share = pace["rate"] / results["limit"][name.split()[1]]
        peak = f"{peaks[name]:.0f}" if name in peaks else "–"
        numbers = [f"{pace[key]:.2f}" for key in Pace._fields]
        rows.append([name, *numbers, f"{100 * share:.0f} %", peak])
    lines.append(format_table(rows))
    lines += [f"{name}: {value:.2f}" for name, value in results["against_trl"].items()]
    return "\n".join(lines)


def against_trl(paces: dict[str, Pace]) -> dict[str, float]:
    """Return how many times as fast as TRL: each way against the same, and best against best."""
    rates = {name: pace.rate for name, pace in paces.items()}
    ways = [way for way in WAYS if f"trl {way}" in rates]
    if not ways:
        return {}
    best = {name: max(rates[f"{name} {way}"] for way in ways) for name in TRAINERS}
    equal = {way: rates[f"ours {way}"] / rates[f"trl {way}"] for way in ways}
    return {
        **{f"ours / TRL, {way}": ratio for way, ratio in equal.items()},
        "ours / TRL, best against best": best["ours"] / best["trl"],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(given: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--model", choices=list(WORKLOADS), default="tiny")
    parser.add_argument("--lora", type=int, metavar="RANK", help="of adapters on frozen weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=tuple(WAYS), choices=WAYS, help="of training")
    parser.add_argument("--skip", nargs="*", default=[], choices=["trl", "rollout", "memory"])
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    model, (trained, longer) = MODELS[args.model], WORKLOADS[args.model]
    lora = None if args.lora is None else LoRA(args.lora, 2 * args.lora)
    if args.alone:
        _alone(args.alone, trained, model, args.threads, lora)
        return
    retain_freed_memory()
    names = [name for name in TRAINERS if name not in args.skip]
    played = [] if "rollout" in args.skip else [(w, d) for w in (trained, longer) for d in DTYPES]
    results: dict[str, Any] = {
        "model": asdict(model),
        "workload": asdict(trained),
        "longer": asdict(longer),
        "lora_rank": args.lora,
        "threads": args.threads,
        "repetitions": args.repetitions,
        "torch": torch.__version__,
        "rollout": [],
        "peak_mebibytes": {},
    }
    for workload, dtype in played:
        rates = rollouts(workload, model, dtype, args.repetitions, lora=lora)
        results["rollout"].append({"turns": workload.turns, "dtype": dtype, **rates})
        _say(f"rollouts of {workload.turns} turns, {dtype}: {rates}")
    paces = training(trained, model, names, args.repetitions, args.threads, args.ways, lora)
    results["training"] = {name: pace._asdict() for name, pace in paces.items()}
    _say(f"training: {results['training']}")
    results["limit"] = {dtype: limit(trained, model, dtype, lora=lora) for dtype in DTYPES}
    for name in [] if "memory" in args.skip else [f"{n} {d}" for n in names for d in DTYPES]:
        results["peak_mebibytes"][name] = measure_memory(name, args.model, args.threads, lora)
    results["against_trl"] = against_trl(paces)
    print(table(results))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
