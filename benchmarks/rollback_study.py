"""A study of rollbacks: the same seed with ``callbacks.Rollback`` and without it.

``python benchmarks/rollback_study.py OUT_DIR [--variant grpo] [--rate 1.6e-3] [--jobs 2]``

Both runs start from a laboratory's warm start (``OUT_DIR/warm_start``, created if it is missing) at
a constant learning rate at which the variant collapses, and are identical until the first rollback.
The detector stops neither. Writes ``rollback.json`` and ``rollback.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.collapse_study import peaks, series, smooth
from benchmarks.grid import Cell, Grid, exit_code
from benchmarks.laboratory import ENVIRONMENTS, VARIANTS, Study, arguments, warm_start
from benchmarks.laboratory_report import table

WITH, WITHOUT = "with", "without"


@dataclass(frozen=True)
class Recovery:
    """One seed's two runs compared, by the smoothed success of rollouts and by evaluation."""

    seed: int
    rollbacks: int
    alarm: int | None
    """First iteration of the alarm that led to the first rollback."""
    before: float
    """Success in the last iteration before the alarm; without a rollback, at the end."""
    peak_before: float
    """Highest success until then."""
    end_with: float
    end_without: float
    eval_set_with: float
    eval_set_without: float

    @property
    def is_shown(self) -> bool:
        """Whether the run with rollbacks ends above its success before the alarm, and the other
        one does not."""
        return self.rollbacks > 0 and self.end_with > self.before >= self.end_without


def alarm_began(levels: Sequence[float | None], at: int) -> int:
    """Return the first iteration of the stretch of amber and red that lasts until ``at``."""
    start = at
    while start > 0 and (levels[start - 1] or 0) > 0:
        start -= 1
    return start


def compare(recovered: Mapping[str, Any], fallen: Mapping[str, Any], seed: int) -> Recovery:
    """Compare two runs by their ``results.json``.

    Raises:
        ValueError: when the first has no list of rollbacks.
    """
    if "rollbacks" not in recovered:
        raise ValueError("results.json lists no rollbacks: was the run made with rollback.times?")
    events, history = recovered["rollbacks"], recovered["history"]
    success = smooth(series(history, "rollout/success"))
    other = smooth(series(fallen["history"], "rollout/success"))
    alarm, last = None, len(success) - 1
    if events:  # they count iterations from 1
        alarm = alarm_began(history["collapse/level"], events[0]["iteration"] - 1)
        last = max(0, alarm - 1)
    return Recovery(
        seed,
        len(events),
        alarm,
        before=success[last],
        peak_before=peaks(success)[last],
        end_with=success[-1],
        end_without=other[-1],
        eval_set_with=_final_success(recovered),
        eval_set_without=_final_success(fallen),
    )


def _final_success(results: Mapping[str, Any]) -> float:
    return float(next(e["success"] for e in results["evaluations"] if e["policy"] == "final"))


def markdown(found: Sequence[Recovery]) -> str:
    """Tabulate seeds, and count those that show it."""
    header = [
        *("seed", "rollbacks", "alarm at", "success before it", "peak before it"),
        *("end with", "end without", "evaluation set with", "evaluation set without", "recovered"),
    ]
    rows = [
        [str(r.seed), str(r.rollbacks), "–" if r.alarm is None else str(r.alarm)]
        + [f"{100 * share:.0f} %" for share in (r.before, r.peak_before, r.end_with)]
        + [f"{100 * share:.0f} %" for share in (r.end_without, r.eval_set_with, r.eval_set_without)]
        + ["yes" if r.is_shown else "no"]
        for r in found
    ]
    count = sum(r.is_shown for r in found)
    return (
        f"# Rollback\n\n{count} of {len(found)} seeds end above their success before the alarm "
        f"with rollbacks, and not without.\n\n{table(header, rows)}\n"
    )


def pairs(
    study: Study, times: int, folder: Path, lr_factor: float | None = None
) -> Iterator[tuple[int, Cell, Cell]]:
    """Iterate over (seed, with, without).

    Args:
        times: Rollbacks that the first may make.
        lr_factor: Of each; None for the callback's own.
    """
    (variant,) = (v for v in VARIANTS if v.name == study.variants[0])
    (rate,) = study.rates
    for seed in range(study.first_seed, study.first_seed + study.seeds):
        same = arguments(study, variant, folder, rate, seed)
        place = f"rollback/{variant.name}/{rate:g}/seed{seed}"
        more, name = (*same, "--rollback.times", str(times)), WITH
        if lr_factor is not None:
            more, name = (*more, "--rollback.lr_factor", str(lr_factor)), f"{WITH}-{lr_factor:g}"
        yield seed, Cell(f"{place}-{name}", more), Cell(f"{place}-{WITHOUT}", same)


def main(given: Sequence[str] | None = None) -> int:
    """Run the pairs and write the comparison; return 1 when a run failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--env", choices=ENVIRONMENTS, default="sokoban")
    parser.add_argument("--variant", choices=[v.name for v in VARIANTS], default="grpo")
    parser.add_argument("--rate", type=float, default=1.6e-3)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=120, help="of RL in every run")
    parser.add_argument("--times", type=int, default=3, help="rollbacks a run may make")
    parser.add_argument("--lr-factor", type=float, help="of each rollback")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    args = parser.parse_args(given)
    study = Study(
        env=args.env,
        rates=(args.rate,),
        seeds=args.seeds,
        first_seed=args.first_seed,
        variants=(args.variant,),
        iterations=args.iterations,
    )
    if Grid(args.out, keep_weights=True).run([warm_start(args.env)]):
        return 1
    grid, planned = (
        Grid(args.out, args.jobs),
        list(pairs(study, args.times, args.out, args.lr_factor)),
    )
    failed = grid.run([cell for _, *cells in planned for cell in cells])
    found = []
    for seed, recovered, fallen in planned:
        results = [grid.results(cell) for cell in (recovered, fallen) if grid.is_done(cell)]
        if len(results) == 2 and results[0] is not None and results[1] is not None:
            found.append(compare(results[0], results[1], seed))
    text = markdown(found)
    facts = [asdict(recovery) for recovery in found]
    (args.out / "rollback.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (args.out / "rollback.md").write_text(text, encoding="utf-8")
    print(text)
    return exit_code(failed)


if __name__ == "__main__":
    sys.exit(main())
