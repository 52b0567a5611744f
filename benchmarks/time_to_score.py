"""Seconds until a policy solves 50, 80 and 90 % of Sokoban's rooms, beside TRL's GRPOTrainer.

``python benchmarks/time_to_score.py OUT.json [--sides ours rl trl trl_engine] [--threads 1]``

All sides begin at the same policy, that of the default experiment's warm start, and play in the
same words for the same rewards. They take turns in one process, the one whose clock is behind next;
the clock stops for evaluations, on the same tuning rooms for all. A score counts as reached at the
first evaluation that shows it.

- ``ours``: the default experiment, StarPO-S with hindsight imitation, with its own schedule.
- ``rl``: the same without hindsight imitation, at a constant learning rate until its time is over.
- ``trl``: TRL's ``GRPOTrainer``, once for each of a few constant learning rates, each for the whole
  time. Groups, collections and optimizer batches are as large as ours, the ratio is clipped at the
  same bounds, and there is no KL term. Its optimizer is AdamW, its precision that of ours, its loss
  TRL's default, and its starts are the environment's own mix, since it has no curriculum. It trains
  the token embeddings, which ours freezes, and learns from all groups, of which ours keeps a
  quarter. It generates with ``model.generate`` on whole prefixes, which is what it offers without a
  server.
- ``trl_engine``: the same with this library's sampler, so that generation is no part of the
  difference.

TRL comes with the extra ``bench``. Prints a table and writes JSON. The figures need a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ragen_pl.runtime.wait_policy import limit_spinning

    limit_spinning()  # before PyTorch is loaded, as the command does

import torch

from benchmarks.grid import Grid
from benchmarks.laboratory import from_warm_start
from benchmarks.learning import ARMS, Study, base, warm_start, warm_start_name
from benchmarks.racers import Judge, Side, TRLSettings, ours, trl
from ragen_pl.models.base import LanguageModel
from ragen_pl.report.tables import format_table
from ragen_pl.runtime.allocator import retain_freed_memory
from ragen_pl.training.evaluation.results import EvalResult

TARGETS = (0.5, 0.8, 0.9)
RATES = (1e-4, 3e-4, 1e-3)
"""TRL's learning rates: the one that the default experiment's policy gradient has, and about a
third and three times of it."""
SIDES = ("ours", "rl", "trl", "trl_engine")
USUAL = SIDES[:3]
_CONSTANT = (
    *("--trainer.max_epochs", "-1"),
    *("--model.optimization.final_lr_fraction", "1.0"),
)


@dataclass(frozen=True)
class Look:
    """An evaluation, and what its side had spent by then."""

    seconds: float
    core_seconds: float
    trajectories: int
    success: float
    low: float
    high: float


@dataclass
class Record:
    """The evaluations of a side, in order; the first is that of the common start."""

    name: str
    looks: list[Look] = field(default_factory=list)

    def reached(self, target: float) -> Look | None:
        """Return the first evaluation at a target or above."""
        return next((look for look in self.looks if look.success >= target), None)


@dataclass(frozen=True)
class Rules:
    """When sides are evaluated and when they stop.

    Args:
        limit: Seconds after which a side stops.
        every: Seconds between two evaluations of a side.
        targets: Success rates; a side stops when it has reached the last one.
    """

    limit: float = 600.0
    every: float = 10.0
    targets: tuple[float, ...] = TARGETS


def race(
    sides: Sequence[Side], judge: Callable[[LanguageModel], EvalResult], rules: Rules
) -> list[Record]:
    """Let the sides take turns until each has stopped; return their records."""
    records = {side: Record(side.name) for side in sides}
    for side in sides:
        side.steps.step()  # set-up
        _look(side, judge, records[side])
    running = list(sides)
    while running:
        side = min(running, key=lambda each: each.seconds)
        side.step()
        looks = records[side].looks
        is_over = side.steps.finished or side.seconds >= rules.limit
        if is_over or side.seconds >= looks[-1].seconds + rules.every:
            _look(side, judge, records[side])
        if is_over or looks[-1].success >= max(rules.targets):
            running.remove(side)
    return list(records.values())


def _look(side: Side, judge: Callable[[LanguageModel], EvalResult], record: Record) -> None:
    """Evaluate a side, outside its clock."""
    found = judge(side.policy())
    spent = (round(side.seconds, 2), round(side.core_seconds, 2), side.trajectories)
    record.looks.append(Look(*spent, found.success, found.low, found.high))
    _say(f"{side.name}: {found.success:.3f} after {side.seconds:.0f} s")


def table(records: Sequence[Record], rules: Rules) -> str:
    """Return the seconds to each target, with trajectories, and the best evaluation."""
    header = ["seconds (trajectories) until", *(f"{target:g}" for target in rules.targets)]
    rows = [[*header, "start", "best", "last", "seconds in all"]]
    for record in records:
        times = [record.reached(target) for target in rules.targets]
        shown = [
            "not reached" if t is None else f"{t.seconds:.0f} ({t.trajectories})" for t in times
        ]
        first, last = record.looks[0], record.looks[-1]
        best = max(look.success for look in record.looks)
        shares = (f"{100 * share:.1f} %" for share in (first.success, best, last.success))
        rows.append([record.name, *shown, *shares, f"{last.seconds:.0f}"])
    return format_table(rows)


def facts(records: Sequence[Record], rules: Rules) -> list[Mapping[str, Any]]:
    """Return the records as plain data, with the evaluations that reached the targets."""

    def plain(look: Look | None) -> dict[str, Any] | None:
        return None if look is None else asdict(look)

    return [
        {
            "side": record.name,
            "reached": {f"{t:g}": plain(record.reached(t)) for t in rules.targets},
            "looks": [asdict(look) for look in record.looks],
        }
        for record in records
    ]


def options(study: Study, folder: Path, arm: str) -> tuple[str, ...]:
    """Return the real command's options of an arm of ``learning.py``, from the warm start."""
    seed = study.seeds[0]
    return (
        *(*base(study), *from_warm_start(folder, warm_start_name(seed)), *ARMS[arm].options),
        *("--trainer.max_epochs", str(study.iterations), "--seed_everything", str(seed)),
    )


def contenders(
    names: Sequence[str], study: Study, folder: Path, threads: int, choices: Sequence[TRLSettings]
) -> list[Side]:
    """Build the sides."""
    found = []
    if "ours" in names:
        found.append(ours("ours", options(study, folder, "both"), threads))
    rl = (*options(study, folder, "rl"), *_CONSTANT)
    if "rl" in names:
        found.append(ours("ours, RL alone", rl, threads))
    uniform = (*rl, *ARMS["both_uniform"].options)
    engines = {"trl": "generate", "trl_engine": "ours"}
    wanted = [engines[name] for name in engines if name in names]
    found += [trl(choice, uniform, threads) for choice in choices if choice.engine in wanted]
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file to write; the start is kept beside it")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=USUAL)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of each side")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between evaluations")
    parser.add_argument("--eval_size", type=int, help="rooms of an evaluation")
    parser.add_argument("--greedy", action="store_true", help="evaluate greedily, not at T=0.5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trl_rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--trl_loss", choices=["dapo", "grpo", "dr_grpo"], default="dapo")
    parser.add_argument("--config", nargs="+", default=[], help="overlays of the experiment")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Race, print, write; return 1 when the warm start failed."""
    args = parse(given)
    torch.set_num_threads(args.threads)
    retain_freed_memory()
    study = Study(
        seeds=(args.seed,),
        split="tuning",
        eval_size=args.eval_size,
        overlays=tuple(args.config),
        quick=args.quick,
    )
    folder = args.out.parent / f"{args.out.stem}_start"
    if Grid(folder, keep_weights=True).run([warm_start(study, args.seed)]):
        return 1
    rules = Rules(args.limit, args.every)
    choices = [
        TRLSettings(rate, args.trl_loss, engine)
        for rate in args.trl_rates
        for engine in ("generate", "ours")
    ]
    temperature = ("--data.evaluation.temperature", "0" if args.greedy else "0.5")
    judge = Judge((*options(study, folder, "both"), *temperature), args.threads)
    sides = contenders(args.sides, study, folder, args.threads, choices)
    records = race(sides, judge, rules)
    results = {
        "rules": asdict(rules),
        "temperature": 0.0 if args.greedy else 0.5,
        "threads": args.threads,
        "seed": args.seed,
        "trl": [asdict(choice) for choice in choices],
        "torch": torch.__version__,
        "sides": facts(records, rules),
    }
    print(table(records, rules))
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
