"""What an iteration of a real model with adapters waits for on a CPU: its phases, part by part.

``python benchmarks/adapter_iteration.py OUT_DIR [--iterations 3] [--only base fp32 …]``

Runs SmolLM2-135M with adapters on Sokoban, as its overlay has it, and the same with one thing
changed, each the real command in a process of one thread. Prints the seconds of the phases and the
processor time of an iteration, medians without the first, which meets new shapes; processor time is
what other programs on the machine change least. ``run.py fetch smollm2-135m`` comes first. TRL
beside an iteration of this shape is ``vs_trl.py --model 135m --lora 16``.

Writes ``adapter_iteration.json``. After an interruption the same command continues.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.grid import Cell, Grid, exit_code
from ragen_pl.models.kernels import shared_prompts
from ragen_pl.report.tables import format_table
from ragen_pl.training.callback import RolloutCallback

CALLBACKS = "--trainer.callbacks+=benchmarks"
_CRITIC = "--model.algorithm.advantage.init_args.critic"
BASE = (
    *("--config", "sokoban", "--config", "smollm2-135m", "--config", "starpo_s"),
    *("--trainer.limit_val_batches", "0", "--results.temperatures", "[1.0]"),
    *("--data.evaluation.size", "1", "--data.evaluation.pins.default", "null"),
    *("--data.eval_sets.reference", "null", "--data.rollout.num_groups", "2"),
    *("--data.rollout.group_size", "8", "--data.rollout.max_turns", "3"),
    *("--filter.keep_fraction", "0.5", "--filter.include_zero", "true"),
    *("--report.write", "never", "--trainer.precision", "bf16-mixed"),
    *(f"{_CRITIC}.warmup_iterations", "0", f"{CALLBACKS}.core_seconds.CoreSeconds"),
)
"""The run in short dialogues: 16 trajectories of three turns. Untrained, it solves nothing; all
groups are kept all the same."""
CHANGES: Mapping[str, tuple[str, ...]] = {
    "base": (),
    "fp32": ("--trainer.precision", "32-true"),
    "whole prompts": (f"{CALLBACKS}.adapter_iteration.WholePrompts",),
    "sdpa": ("--model.policy.init_args.attention", "sdpa"),
    "own critic": (f"{_CRITIC}.backbone", "separate"),
    "no critic": ("--model.algorithm.advantage", "GRPO"),
    "reference": ("--model.algorithm.kl", "{coef: 0.001, estimator: k3, place: loss}"),
}
"""By name, what is changed: products in float32; every row with its own prompt; PyTorch's
attention, sampled through the library's layers; a critic with adapters of its own in place of a
head on the policy; none; a KL term, whose reference shares the base's weights and has a pass of its
own."""
PHASES = ("rollout", "score_pass", "update")


class WholePrompts(RolloutCallback):
    """A run in which no prompt is computed once for several rows."""

    def __init__(self) -> None:
        super().__init__()
        shared_prompts._MOST_LEFT = shared_prompts._MOST_LEFT_WIDE = 0.0


def cells(iterations: int, names: Sequence[str] = tuple(CHANGES)) -> list[Cell]:
    """Return the runs of these names."""
    length = ("--trainer.max_epochs", str(iterations))
    return [Cell(name.replace(" ", "_"), (*BASE, *length, *CHANGES[name])) for name in names]


def measure(results: Mapping[str, Any]) -> dict[str, float]:
    """Return an iteration's medians in seconds, without the first: its phases, and the processor
    time of all of it.

    Args:
        results: A finished run's ``results.json``.
    """
    history, spent = results["history"], results["costs"]["core_seconds"]
    found = {phase: median(history[f"time/{phase}"][1:]) for phase in PHASES}
    each = [after - before for before, after in pairwise(spent)]
    return found | {"processor": median(each)}


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return a row per run, with its processor time as a multiple of the first one's."""
    rows = [["run", *PHASES, "processor time", "times"]]
    first = next(iter(found.values()))["processor"]
    for name, seconds in found.items():
        cells = [f"{seconds[key]:.2f}" for key in (*PHASES, "processor")]
        rows.append([name, *cells, f"{seconds['processor'] / first:.2f}"])
    return format_table(rows)


def main(given: Sequence[str] | None = None) -> int:
    """Run, print, write; return 1 when a run failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for runs and figures")
    parser.add_argument("--iterations", type=int, default=3, help="of each run, at least 2")
    parser.add_argument("--only", nargs="+", choices=list(CHANGES), default=list(CHANGES))
    args = parser.parse_args(given)
    if args.iterations < 2:
        parser.error(f"--iterations is {args.iterations}; the first is not counted: give 2 or more")
    grid, planned = Grid(args.out), cells(args.iterations, args.only)
    failed = grid.run(planned)
    found = {}
    for name, cell in zip(args.only, planned, strict=True):
        results = grid.results(cell) if grid.is_done(cell) else None
        if results is not None:
            found[name] = measure(results)
    if found:
        text = json.dumps(found, indent=1) + "\n"
        (args.out / "adapter_iteration.json").write_text(text, encoding="utf-8")
        print(table(found))
    return exit_code(failed)


if __name__ == "__main__":
    sys.exit(main())
