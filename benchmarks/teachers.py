"""Which teacher helps where: the same RL after, or beside, different teachers.

``python benchmarks/teachers.py OUT_DIR [TEACHER …] [--tasks …] [--seeds 0 1 2] [--jobs 2]``

Every run is a shipped experiment without its hindsight imitation, plus one teacher, or two. All
runs of a task have equally many iterations of RL after the warm start, and the same evaluation
starts; what a teacher costs beside that is in the seconds. Runs compute on one thread. ``none``
begins RL with random weights: the floor that shows what a teacher is for.

After an interruption the same command continues; ``--report`` only writes the tables of what is
there: ``teachers.md`` and ``teachers.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.grid import Cell, Grid, exit_code
from benchmarks.laboratory_report import table
from benchmarks.learning_report import Scores, plain, scores, share
from ragen_pl.cli.config.files import find_config, read_config

TEMPERATURES = (0.5, 0.0)
QUICK_ITERATIONS = 1


@dataclass(frozen=True)
class Task:
    """An experiment, and what it needs to be taught.

    Args:
        iterations: Iterations of RL.
        explorer_steps: Environment steps that the explorer learns from.
        explorer: The explorer's kind of agent.
        teachers: Those that can teach here; None means all.
        quick_steps: The explorer's steps in a quick run: as few as lead to some success.
    """

    iterations: int
    explorer_steps: int
    explorer: str = "DQN"
    teachers: tuple[str, ...] | None = None
    quick_steps: int = 2_000


TASKS = {
    "sokoban": Task(60, 40_000),
    "sokoban_two_boxes": Task(60, 100_000),
    "frozen_lake": Task(60, 40_000),
    "rubik": Task(60, 60_000),
    "sudoku": Task(60, 60_000),
    # There is no solver, and no thoughts in which a world model could be told.
    "minigrid_door_key": Task(
        60,
        60_000,
        explorer="PPO",
        teachers=("none", "explorer", "explorer_hindsight"),
        quick_steps=45_000,
    ),
}
_OWN_TURNS = (
    *("--data.warm_start.random_turns", "null"),
    *("--data.warm_start.imitate_random", "null"),
)
"""The explorer's own shares of random turns, not those of the experiment's solver."""


@dataclass(frozen=True)
class Taught:
    """What a run learns from beside RL.

    Args:
        title: Its name in the table.
        explores: Whether a small agent demonstrates in the expert's place.
        imitates: Whether the policy imitates its own solutions in hindsight.
        overlays: Configs over the experiment.
        warm_starts: Whether there is a warm start.
    """

    title: str
    explores: bool = False
    imitates: bool = False
    overlays: tuple[str, ...] = ()
    warm_starts: bool = True


TEACHERS = {
    "none": Taught("none", warm_starts=False),
    "solver": Taught("solver"),
    "explorer": Taught("explorer", explores=True),
    "world_model": Taught("world model, random play", overlays=("world_model",)),
    "self_distillation": Taught("solver, self-distillation", overlays=("self_distillation",)),
    "hindsight": Taught("solver, hindsight imitation", imitates=True),
    "explorer_hindsight": Taught("explorer, hindsight imitation", explores=True, imitates=True),
}


@dataclass(frozen=True)
class Study:
    """What is run.

    Args:
        teachers: Names of the teachers.
        tasks: Names of the tasks.
        seeds: Seeds of the runs.
        given: Iterations of RL; None takes each task's.
        quick: Whether runs are as short as can be, to see that they run.
    """

    teachers: tuple[str, ...] = tuple(TEACHERS)
    tasks: tuple[str, ...] = ("sokoban", "frozen_lake", "rubik")
    seeds: tuple[int, ...] = (0, 1, 2)
    given: int | None = None
    quick: bool = False


@dataclass(frozen=True)
class Run:
    """A cell of the grid, and what it is."""

    task: str
    teacher: str
    seed: int
    cell: Cell


def runs(study: Study) -> Iterator[Run]:
    """Iterate over the runs, seeds outermost: a partial study is complete for some seeds."""
    for seed in study.seeds:
        for task in study.tasks:
            possible = TASKS[task].teachers
            for teacher in study.teachers:
                if possible is not None and teacher not in possible:
                    continue
                name = f"{task}/{teacher}/seed{seed}"
                yield Run(task, teacher, seed, Cell(name, arguments(study, task, teacher, seed)))


def arguments(study: Study, task: str, teacher: str, seed: int) -> tuple[str, ...]:
    """Return what follows ``fit`` for one run."""
    facts, taught = TASKS[task], TEACHERS[teacher]
    warm = int(read_config(find_config(task))["data"]["warm_start"]["iterations"])
    if study.quick:
        warm = QUICK_ITERATIONS
    warm = warm if taught.warm_starts else 0
    learned = QUICK_ITERATIONS if study.quick else study.given or facts.iterations
    steps = facts.quick_steps if study.quick else facts.explorer_steps
    explorer = (
        *("--data.warm_start.teacher", "Explorer"),
        *("--data.warm_start.teacher.agent", facts.explorer),
        *("--data.warm_start.teacher.steps", str(steps)),
    )
    return (
        *("--config", task, *(part for name in taught.overlays for part in ("--config", name))),
        *(() if taught.imitates else ("--data.hindsight", "null")),
        *((*_OWN_TURNS, *explorer) if taught.explores else ()),
        *("--data.warm_start.iterations", str(warm)),
        *("--trainer.max_epochs", str(warm + learned)),
        *("--trainer.check_val_every_n_epoch", "1000000"),
        *("--data.evaluation.temperature", str(TEMPERATURES[0])),
        *("--results.temperatures", json.dumps(TEMPERATURES)),
        *("--trainer.callbacks+", "benchmarks.core_seconds.CoreSeconds"),
        *("--trainer.logger", "false", "--checkpoints.every_n_iterations", "1000000"),
        *("--echo_trap.stop", "false"),
        *("--report.write", "never", "--trajectories.evaluations", "false"),
        *("--trajectories.every_n_iterations", "0"),
        *("--seed_everything", str(seed)),
        *(_quickly() if study.quick else ()),
    )


def _quickly() -> tuple[str, ...]:
    return (
        *("--data.rollout.num_groups", "5", "--data.warm_start.demonstrations", "60"),
        *("--data.warm_start.updates_per_iteration", "5"),
    )


@dataclass(frozen=True)
class Finding:
    """A run's scores before and after RL, and what it cost."""

    task: str
    teacher: str
    seed: int
    learning_seconds: float
    """Core-seconds of imitation and RL, without demonstrations and evaluations."""
    whole_seconds: float
    """Seconds of the whole run by the clock, with both."""
    before: Scores
    after: Scores


def read(folder: Path, planned: Iterable[Run]) -> list[Finding]:
    """Read the runs that are done, in their order."""
    grid, found = Grid(folder), []
    for run in planned:
        if grid.is_done(run.cell):
            place, results = folder / run.cell.name, grid.results(run.cell) or {}
            start = "warm-started" if TEACHERS[run.teacher].warm_starts else "untrained"
            found.append(
                Finding(
                    run.task,
                    run.teacher,
                    run.seed,
                    results["costs"]["core_seconds"][-1],
                    results["seconds"],
                    scores(place, start),
                    scores(place, "final"),
                )
            )
    return found


def markdown(found: Sequence[Finding]) -> str:
    """Write a table for every task: the median over seeds, and their range."""
    parts = []
    for task in dict.fromkeys(finding.task for finding in found):
        here = [finding for finding in found if finding.task == task]
        rows = []
        for teacher in dict.fromkeys(finding.teacher for finding in here):
            part = [finding for finding in here if finding.teacher == teacher]
            rows.append([TEACHERS[teacher].title, str(len(part)), *_cells(part)])
        count = here[0].after[TEMPERATURES[0]].count
        parts.append(f"## {task}: success on {count} starts, per cent\n\n{table(_HEADER, rows)}")
    return "\n\n".join(parts) + "\n"


_HEADER = (
    *("teacher", "seeds", "before RL, T=0.5", "greedy", "after RL, T=0.5", "greedy"),
    *("true thoughts", "core-seconds of learning", "seconds of the run"),
)


def _cells(part: Sequence[Finding]) -> list[str]:
    first = TEMPERATURES[0]
    shown = [
        share([scored[temperature].success for scored in each if temperature in scored])
        for each in ([f.before for f in part], [f.after for f in part])
        for temperature in TEMPERATURES
    ]
    thoughts = [f.after[first].thought_accuracy for f in part]
    true = share([accuracy for accuracy in thoughts if accuracy is not None])
    costs = ([f.learning_seconds for f in part], [f.whole_seconds for f in part])
    return [*shown, true, *(f"{sum(seconds) / len(seconds):.0f}" for seconds in costs)]


def facts_of(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data, without the lists of starts."""
    return {**vars(finding), "before": plain(finding.before), "after": plain(finding.after)}


def write_report(folder: Path, planned: Iterable[Run]) -> None:
    """Write ``teachers.md`` and ``teachers.json``."""
    found = read(folder, planned)
    if not found:
        print("no run is done: there is nothing to report")
        return
    text = markdown(found)
    (folder / "teachers.md").write_text(text, encoding="utf-8")
    content = json.dumps([facts_of(finding) for finding in found], indent=1)
    (folder / "teachers.json").write_text(content + "\n", encoding="utf-8")
    print(text)


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for runs and tables")
    parser.add_argument("teachers", nargs="*", metavar="TEACHER", help=f"of {', '.join(TEACHERS)}")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=Study().tasks)
    parser.add_argument("--seeds", type=int, nargs="+", help="0 1 2, and 0 with --quick")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--iterations", type=int, help="of RL")
    parser.add_argument("--quick", action="store_true", help="runs of an iteration or two")
    parser.add_argument("--report", action="store_true", help="run nothing, write the tables")
    args = parser.parse_args(given)
    unknown = [name for name in args.teachers if name not in TEACHERS]
    if unknown:
        parser.error(f"there is no teacher {unknown[0]!r}; there are {', '.join(TEACHERS)}")
    return args


def main(given: Sequence[str] | None = None) -> int:
    """Run the study; return 1 when a run failed."""
    args = parse(given)
    study = Study(
        tuple(args.teachers or TEACHERS),
        tuple(args.tasks),
        tuple(args.seeds or ((0,) if args.quick else (0, 1, 2))),
        args.iterations,
        args.quick,
    )
    planned = list(runs(study))
    failed = [] if args.report else Grid(args.out, args.jobs).run([run.cell for run in planned])
    write_report(args.out, planned)
    return exit_code(failed)


if __name__ == "__main__":
    sys.exit(main())
