"""The paper's ablations, several seeds each, with tables beside the paper's figures.

``python benchmarks/sweeps.py OUT_DIR [SWEEP …] [--seeds 3] [--jobs 2] [--quick]``

Every run is StarPO-S on the laboratory's small Sokoban (``laboratory.yaml``) except for the setting
that is swept, from one warm start; a setting that changes the format of responses (thoughts,
actions per turn) has a warm start of its own. ``--quick`` makes every run a few iterations long: it
shows that everything runs, not which setting is better. After an interruption the same command
continues. Writes ``sweeps.md`` and ``sweeps.json``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.grid import Cell, Grid, exit_code
from benchmarks.laboratory import WARM_START, base, from_warm_start, warm_start
from benchmarks.sweeps_report import Trial, write_report

RATE = 1e-4
ITERATIONS, QUICK_ITERATIONS = 80, 6
GROUPS, MEMBERS, UPDATES = 16, 8, 4
"""A collection of the paper's 128 trajectories: 16 groups of 8, for 4 updates of 32."""
SLOW_ITERATIONS = 5
"""Iterations of learning-rate warm-up and of critic-only updates, where a collection makes
UPDATES."""
_QUICK_WARM_START = (
    *("--data.warm_start.iterations", "2", "--data.warm_start.updates_per_iteration", "20"),
    *("--data.warm_start.demonstrations", "200", "--trainer.max_epochs", "2"),
    *("--data.evaluation.size", "16"),
)
_KEEP = "--filter.keep_fraction"
_CLIP_HIGH = "--model.algorithm.policy_loss.clip_high"
_KL = "--model.algorithm.kl"
_ADVANTAGE = "--model.algorithm.advantage"
_UNFILTERED = (_KEEP, "1.0")
_VANILLA = (
    *(*_UNFILTERED, _CLIP_HIGH, "0.2"),
    *(_KL, "{coef: 0.001, estimator: k1, place: reward}"),
)
_PROPORTIONAL = ("--data.rollout.scale_updates", "true")
"""As in the papers: the less a filter keeps, the fewer updates. Elsewhere the number is fixed."""


@dataclass(frozen=True)
class Setting:
    """One value of a sweep, and its options."""

    name: str
    options: tuple[str, ...] = ()
    speech: tuple[str, ...] = ()
    """Options that change the format of responses, and so belong to the warm start too."""
    online_k: int = UPDATES
    """Updates per collection; more of them mean fewer iterations."""
    has_critic: bool = True
    """Whether the estimator has a critic; without one its keys would be an error."""


def online_k(k: int) -> Setting:
    """Split a collection into k optimizer batches, with the same total of trajectories and
    updates."""
    return Setting(f"{k}", ("--data.rollout.online_k", str(k)), online_k=k)


def groups(members: int) -> Setting:
    """Divide 128 trajectories into groups of this size; groups of one have no spread to filter
    by."""
    count = GROUPS * MEMBERS // members
    options = ["--data.rollout.group_size", str(members)]
    options += ["--data.rollout.num_groups", str(count // UPDATES)]
    return Setting(f"{count}x{members}", (*options, *(_UNFILTERED if members == 1 else ())))


def actions(count: int) -> Setting:
    """Allow this many actions per turn, of ten in all."""
    tokens, context = str(12 + 4 * count), str(256 + 32 * count)
    speech = ["--data.rollout.max_actions_per_turn", str(count)]
    speech += ["--data.rollout.max_response_tokens", tokens, "--data.rollout.max_context", context]
    return Setting(str(count), speech=tuple(speech))


def rule(name: str, key: str, value: float) -> Setting:
    """Choose groups by a rule of ``ragen_pl.algorithms.filters``, scored by the variance of
    returns."""
    label = {"TopP": "top-p", "MinP": "min-p"}[name]
    options = [_KEEP, "null", "--filter.rule", f"ragen_pl.algorithms.filters.{name}"]
    options += [f"--filter.rule.{key}", str(value), "--filter.score", "variance", *_PROPORTIONAL]
    return Setting(f"{label} {value:g}", tuple(options))


_THINK = (
    *("--data.prompts.think", "true", "--data.rollout.max_response_tokens", "40"),
    *("--data.rollout.max_context", "512"),
)
SWEEPS: dict[str, tuple[Setting, ...]] = {
    "keep": tuple(
        Setting(f"{keep}", (_KEEP, str(keep), *_PROPORTIONAL)) for keep in (1.0, 0.75, 0.5, 0.25)
    ),
    "clip_higher": (Setting("0.2", _VANILLA), Setting("0.28", (*_VANILLA, _CLIP_HIGH, "0.28"))),
    "kl": (Setting("0.001", _VANILLA), Setting("none", (*_VANILLA, _KL, "null"))),
    "online_k": tuple(online_k(k) for k in (1, 2, 5, 10)),
    "groups": tuple(groups(members) for members in (32, 16, 8, 4, 2, 1)),
    "actions": tuple(actions(count) for count in range(1, 8)),
    "think": (Setting("think", speech=_THINK), Setting("no-think")),
    "filter": (
        Setting("all", _UNFILTERED),
        rule("TopP", "p", 0.9),
        rule("TopP", "p", 0.5),
        rule("MinP", "p", 0.05),
        rule("MinP", "p", 0.2),
        Setting("top-k 0.25", (_KEEP, "0.25", *_PROPORTIONAL)),
        Setting("top-k 0.5", (_KEEP, "0.5", *_PROPORTIONAL)),
    ),
    "estimator": tuple(
        Setting(name, (_ADVANTAGE, name, *_UNFILTERED), has_critic=name.endswith("GAE"))
        for name in ("GAE", "BiLevelGAE", "GRPO", "DrGRPO", "RLOO", "GiGPO")
    ),
}


@dataclass(frozen=True)
class Plan:
    """The size of the sweeps.

    Args:
        names: Names of the sweeps.
        seeds: Number of seeds per setting.
        rate: Learning rate of the policy.
        quick: Whether runs are only a few iterations long.
    """

    names: tuple[str, ...] = tuple(SWEEPS)
    seeds: int = 3
    rate: float = RATE
    quick: bool = False

    def iterations(self, setting: Setting) -> int:
        """Return the iterations that make as many updates as every other setting's."""
        total = QUICK_ITERATIONS if self.quick else ITERATIONS
        return max(1, round(total * UPDATES / setting.online_k))


def start_name(setting: Setting) -> str:
    """Name a setting's warm start: settings with the same format of responses share one."""
    values = "-".join(setting.speech[1::2])
    return f"{WARM_START}-{values}" if values else WARM_START


def warm_starts(plan: Plan) -> list[Cell]:
    """List the warm starts that the sweeps need."""
    size = _QUICK_WARM_START if plan.quick else ()
    found = {
        name: warm_start("sokoban", name, (*setting.speech, *size))
        for sweep in plan.names
        for setting in SWEEPS[sweep]
        for name in [start_name(setting)]
    }
    return list(found.values())


def trials(plan: Plan, folder: Path) -> Iterator[Trial]:
    """Iterate over all runs, seeds outermost; equal ones of different sweeps are one cell."""
    cells: dict[tuple[str, ...], Cell] = {}
    for seed in range(plan.seeds):
        for sweep in plan.names:
            for setting in SWEEPS[sweep]:
                given = arguments(plan, setting, folder, seed)
                place = f"{sweep}/{setting.name.replace(' ', '_')}/seed{seed}"
                yield Trial(sweep, setting.name, seed, cells.setdefault(given, Cell(place, given)))


def arguments(plan: Plan, setting: Setting, folder: Path, seed: int) -> tuple[str, ...]:
    """Return what follows ``fit`` for one run."""
    slow = 0 if plan.quick else round(SLOW_ITERATIONS * UPDATES / setting.online_k)
    critic = (f"{_ADVANTAGE}.critic.warmup_iterations", str(slow)) if setting.has_critic else ()
    return (
        *base("sokoban"),
        *("--config", "starpo_s", _KEEP, "0.5"),
        *from_warm_start(folder, start_name(setting)),
        *("--data.rollout.num_groups", str(GROUPS // UPDATES)),
        *("--data.rollout.group_size", str(MEMBERS)),
        *(
            "--model.optimization.lr",
            str(plan.rate),
            "--model.optimization.warmup_iterations",
            str(slow),
        ),
        *("--trainer.max_epochs", str(plan.iterations(setting))),
        *("--data.evaluation.size", "16" if plan.quick else "256"),
        *("--results.temperatures", "[0.5]"),
        *setting.speech,
        *setting.options,  # where a key is given twice, the last one counts
        *critic,
        *("--seed_everything", str(seed)),
    )


def main(given: Sequence[str] | None = None) -> int:
    """Run the sweeps; return 1 when a run failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for runs and tables")
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"of {', '.join(SWEEPS)}")
    parser.add_argument("--seeds", type=int, help="how many; 3, and 1 with --quick")
    parser.add_argument("--rate", type=float, default=RATE, help="of the policy")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--quick", action="store_true", help="runs of a few iterations")
    parser.add_argument("--report", action="store_true", help="run nothing, write the tables")
    args = parser.parse_args(given)
    unknown = [name for name in args.sweeps if name not in SWEEPS]
    if unknown:
        parser.error(f"there is no sweep {unknown[0]!r}; there are {', '.join(SWEEPS)}")
    seeds = args.seeds or (1 if args.quick else 3)
    plan = Plan(tuple(args.sweeps or SWEEPS), seeds, args.rate, args.quick)
    planned = list(trials(plan, args.out))
    failed: list[Cell] = []
    if not args.report:
        failed = Grid(args.out, args.jobs, keep_weights=True).run(warm_starts(plan))
        if not failed:
            cells = dict.fromkeys(trial.cell for trial in planned)
            failed = Grid(args.out, args.jobs).run(list(cells))
    write_report(args.out, planned)
    return exit_code(failed)


if __name__ == "__main__":
    sys.exit(main())
