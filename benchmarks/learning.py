"""Which part of the default run's score is owed to what.

``python benchmarks/learning.py OUT_DIR [ARM …] [--seeds 0 1 2] [--jobs 2] [--eval_split eval]``

Every arm is the default experiment with something switched off or exchanged. The arms of a seed
begin at the same weights, those of one warm start, have the same stream of initial states, and are
evaluated on the same rooms. A run computes on one thread. (``both`` is the default run but for its
sampling noise: it begins in a process of its own, and the noise depends on the iteration's number.)

- **Equal seconds** (the default): ``both`` runs for the experiment's own number of iterations. The
  other arms get the number that takes as many core-seconds, by the time of an iteration in a short
  pilot run, so that every arm's learning rate has fallen to its end when its time is over. The
  core-seconds and trajectories that each arm took are part of the tables.
- **Equal iterations** (``--equal iterations``): the same trajectories, at different times.

Choose settings with ``--eval_split tuning``; a claim that rests on a few points needs
``--eval_size 1024``. ``--quick`` shows that everything runs, not which arm is better. After an
interruption the same command continues; ``--report`` only writes the tables of what is there.
Writes ``learning.md``, ``learning.json`` and, with the extra ``figures``, ``learning.png``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.grid import Cell, Grid, exit_code
from benchmarks.laboratory import from_warm_start
from benchmarks.learning_report import EVAL_SET, TEMPERATURES, Run, write_report
from ragen_pl.cli.config.files import find_config, read_config

EXPERIMENT = "sokoban"
REFERENCE = "both"
PILOT_ITERATIONS = 12
"""Iterations of a pilot run; the first half, in which the critic is trained alone, is not timed."""
POINTS = 10
"""Evaluations during a run."""
QUICK_ITERATIONS = 3
_QUICK = (
    *("--data.warm_start.iterations", "1", "--data.warm_start.updates_per_iteration", "20"),
    *("--data.warm_start.demonstrations", "100", "--data.rollout.num_groups", "5"),
)
_QUICK_SIZE = 16

Equal = Literal["seconds", "iterations"]


@dataclass(frozen=True)
class Arm:
    """A way to learn after the warm start.

    Args:
        title: Its name in tables.
        options: Options over those of ``both``.
        demonstrates: Whether the expert's demonstrations of the warm start go on instead of
            rollouts.
    """

    title: str
    options: tuple[str, ...] = ()
    demonstrates: bool = False


_ON = (
    *("--data.hindsight.symmetries", "true", "--data.hindsight.alone", "false"),
    *("--data.curriculum", "ragen_pl.rollout.curriculum.TargetSuccess"),
    *("--model.optimization.muon.nesterov", "true"),
)
"""What the arms rely on. One key of each part switches it on, if the experiment has it off, and
leaves the part's other keys as they are."""
_ALONE = ("--data.hindsight.alone", "true", "--model.algorithm.advantage", "GRPO")
"""Without RL there is nothing for a critic to do."""
_DEMONSTRATIONS = (
    *("--data.warm_start.demonstrations", "4000"),
    *("--data.warm_start.difficulties", "[]"),
)
"""More of them than the warm start's, and of all difficulties: what the expert alone can teach."""
_GROUNDED = ("--config", "grounded_thoughts")
ARMS = {
    REFERENCE: Arm("RL and hindsight imitation"),
    "rl": Arm("RL alone", ("--data.hindsight", "null")),
    "hindsight": Arm("hindsight imitation alone", _ALONE),
    "imitation": Arm("the expert's demonstrations", _DEMONSTRATIONS, demonstrates=True),
    "both_no_symmetries": Arm("both, no symmetries", ("--data.hindsight.symmetries", "false")),
    "both_uniform": Arm(
        "both, no curriculum", ("--data.curriculum", "ragen_pl.rollout.curriculum.Uniform")
    ),
    "both_progress": Arm(
        "both, curriculum by learning progress",
        ("--data.curriculum", "ragen_pl.rollout.curriculum.LearningProgress"),
    ),
    "both_replay": Arm(
        "both, prioritized level replay",
        ("--data.curriculum", "ragen_pl.rollout.curriculum.LevelReplay"),
    ),
    "both_adamw": Arm("both, AdamW instead of Muon", ("--model.optimization.muon", "null")),
    "rl_grounded": Arm("RL alone, graded thoughts", ("--data.hindsight", "null", *_GROUNDED)),
    "both_grounded": Arm("both, graded thoughts", _GROUNDED),
}
"""Each is compared with ``both``; a further one is a line here."""


@dataclass(frozen=True)
class Study:
    """What is run.

    Args:
        arms: Names of the arms; ``both`` is always among them.
        seeds: Seeds of the runs.
        split: Rooms of the evaluation.
        eval_size: Number of these; None takes the experiment's.
        overlays: Configs over the experiment, in all runs.
        equal: What the arms have equally much of.
        given: Iterations of ``both`` after the warm start; None takes the experiment's.
        quick: Whether runs are only a few iterations long.
    """

    arms: tuple[str, ...] = tuple(ARMS)
    seeds: tuple[int, ...] = (0, 1, 2)
    split: str = "eval"
    eval_size: int | None = None
    overlays: tuple[str, ...] = ()
    equal: Equal = "seconds"
    given: int | None = None
    quick: bool = False

    @property
    def warm_iterations(self) -> int:
        """Iterations of the warm start."""
        return 1 if self.quick else int(self._configured("data", "warm_start", "iterations"))

    @property
    def iterations(self) -> int:
        """Iterations of ``both``, without the warm start."""
        if self.given is not None:
            return self.given
        if self.quick:
            return QUICK_ITERATIONS
        return int(self._configured("trainer", "max_epochs")) - self.warm_iterations

    @property
    def evaluated(self) -> dict[str, Any]:
        """The environment of the evaluation: that of the training, on rooms of ``split``."""
        env = self._configured("data", "env")
        return {**env, "init_args": {**env.get("init_args", {}), "split": self.split}}

    def _configured(self, *keys: str) -> Any:
        """Return a value of the experiment or, if they have it, of the last overlay."""
        found: Any = None
        for name in (EXPERIMENT, *self.overlays):
            content: Any = read_config(find_config(name))
            for key in keys:
                content = content.get(key) if isinstance(content, dict) else None
            found = found if content is None else content
        return found


def base(study: Study) -> tuple[str, ...]:
    """Return the options of every run of a study."""
    size = _QUICK_SIZE if study.quick and study.eval_size is None else study.eval_size
    return (
        *("--config", EXPERIMENT),
        *(part for name in study.overlays for part in ("--config", name)),
        *_ON,
        *("--data.eval_sets", json.dumps({EVAL_SET: study.evaluated, "reference": None})),
        *("--data.evaluation.pins", json.dumps({EVAL_SET: None})),
        *(() if size is None else ("--data.evaluation.size", str(size))),
        *("--data.evaluation.temperature", str(TEMPERATURES[0])),
        *("--results.temperatures", json.dumps(TEMPERATURES)),
        *("--trainer.callbacks+", "benchmarks.core_seconds.CoreSeconds"),
        *("--trainer.logger", "false", "--checkpoints.every_n_iterations", "1000000"),
        *("--echo_trap.stop", "false"),
        # Seconds are for learning: nobody looks at these runs one by one.
        *("--report.write", "never", "--trajectories.evaluations", "false"),
        *("--trajectories.every_n_iterations", "0"),
        *(_QUICK if study.quick else ()),
    )


def warm_start_name(seed: int) -> str:
    """Name a seed's warm start."""
    return f"warm_start/seed{seed}"


def warm_start(study: Study, seed: int) -> Cell:
    """Return the run of a seed's warm start, which exports its policy."""
    lengths = ("--trainer.max_epochs", str(study.warm_iterations))
    never = ("--trainer.check_val_every_n_epoch", "1000000")
    given = (*base(study), *lengths, *never, "--seed_everything", str(seed))
    return Cell(warm_start_name(seed), given)


def cell(study: Study, name: str, seed: int, iterations: int, folder: Path) -> Cell:
    """Return an arm's run of this many iterations from the seed's warm start."""
    arm, length = ARMS[name], str(iterations)
    given = (
        *(*base(study), *from_warm_start(folder, warm_start_name(seed)), *arm.options),
        *(("--data.warm_start.iterations", length) if arm.demonstrates else ()),
        *("--trainer.max_epochs", length),
        *("--trainer.check_val_every_n_epoch", str(max(1, iterations // POINTS))),
        *("--seed_everything", str(seed)),
    )
    return Cell(f"{name}/seed{seed}", given)


def pilot(study: Study, name: str, folder: Path) -> Cell:
    """Return the run that shows how long an iteration of an arm takes."""
    short = replace(study, eval_size=_QUICK_SIZE)
    iterations = QUICK_ITERATIONS if study.quick else PILOT_ITERATIONS
    found = cell(short, name, study.seeds[0], iterations, folder)
    return Cell(f"pilot/{name}", found.arguments)


def reference_cells(study: Study, folder: Path) -> list[Cell]:
    """List the runs of ``both``."""
    return [cell(study, REFERENCE, seed, study.iterations, folder) for seed in study.seeds]


def seconds_per_iteration(results: dict[str, Any]) -> float:
    """Return the median over the second half of a pilot run."""
    spent = results["costs"]["core_seconds"]
    late = spent[len(spent) // 2 - 1 :]
    return float(median(after - before for before, after in pairwise(late)))


def runs(study: Study, folder: Path) -> Iterator[Run]:
    """Iterate over the runs whose length is known, seeds outermost, without those that must wait
    for ``both`` and the pilots."""
    grid = Grid(folder)
    for seed, reference in zip(study.seeds, reference_cells(study, folder), strict=True):
        done = grid.results(reference) if grid.is_done(reference) else None
        for name in study.arms:
            iterations: int | None = study.iterations
            if name != REFERENCE and study.equal == "seconds":
                trial = pilot(study, name, folder)
                timed = grid.results(trial) if grid.is_done(trial) else None
                iterations = None if timed is None or done is None else _equal(done, timed)
            if iterations is not None:
                planned = cell(study, name, seed, iterations, folder)
                yield Run(name, ARMS[name].title, seed, iterations, planned)


def _equal(reference: dict[str, Any], timed: dict[str, Any]) -> int:
    """Return the number of iterations that takes as long as the reference took."""
    budget = reference["costs"]["core_seconds"][-1]
    return max(1, round(float(budget) / seconds_per_iteration(timed)))


def run_all(study: Study, folder: Path, jobs: int) -> list[Cell]:
    """Run what is not done yet; return the runs that failed."""
    starts = [warm_start(study, seed) for seed in study.seeds]
    failed = Grid(folder, jobs, keep_weights=True).run(starts)
    if failed:
        return failed
    first = reference_cells(study, folder)
    if study.equal == "seconds":
        first += [pilot(study, name, folder) for name in study.arms if name != REFERENCE]
    failed = Grid(folder, jobs).run(first)
    if failed:
        return failed
    return Grid(folder, jobs).run([run.cell for run in runs(study, folder)])


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for runs, tables and figure")
    parser.add_argument("arms", nargs="*", metavar="ARM", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--seeds", type=int, nargs="+", help="0 1 2, and 0 with --quick")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--eval_split", choices=["eval", "tuning"], default="eval")
    parser.add_argument("--eval_size", type=int, help="rooms of an evaluation")
    parser.add_argument("--equal", choices=["seconds", "iterations"], default="seconds")
    parser.add_argument("--iterations", type=int, help="of both, after the warm start")
    parser.add_argument("--config", nargs="+", default=[], help="overlays of all runs")
    parser.add_argument("--quick", action="store_true", help="runs of a few iterations")
    parser.add_argument("--report", action="store_true", help="run nothing, write the tables")
    args = parser.parse_args(given)
    unknown = [name for name in args.arms if name not in ARMS]
    if unknown:
        parser.error(f"there is no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    return args


def main(given: Sequence[str] | None = None) -> int:
    """Run the study; return 1 when a run failed."""
    args = parse(given)
    study = Study(
        tuple(dict.fromkeys((REFERENCE, *(args.arms or ARMS)))),
        tuple(args.seeds or ((0,) if args.quick else (0, 1, 2))),
        args.eval_split,
        args.eval_size,
        tuple(args.config),
        args.equal,
        args.iterations,
        args.quick,
    )
    failed = [] if args.report else run_all(study, args.out, args.jobs)
    starts = {seed: warm_start(study, seed) for seed in study.seeds}
    write_report(args.out, list(runs(study, args.out)), starts, study.split)
    return exit_code(failed)


if __name__ == "__main__":
    sys.exit(main())
