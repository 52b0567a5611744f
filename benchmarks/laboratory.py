"""A study of the Echo Trap: which variants of StarPO collapse, and when the alarm comes.

``python benchmarks/laboratory.py OUT_DIR [--env sokoban] [--seeds 5] [--rates 1e-3 …] [--jobs 2]``

From one warm start by imitation, the same for all, it trains vanilla StarPO and StarPO-S, each with
PPO and with GRPO, over seeds and constant learning rates; the detector warns but does not stop a
run. A seed decides the initial states and all sampling of RL, and is the same for all variants.
Every run has equally many iterations, each a collection of 80 trajectories. Vanilla StarPO makes 4
updates of 20 trajectories of each. It is compared with

- StarPO-S at **equal updates** (``scale_updates: false``): also 4 updates, each of the trajectories
  that the filter keeps of 20. Steps, freshness of the data and learning rate are equal; each step
  uses fewer trajectories.
- StarPO-S at **equal iterations** (``scale_updates: true``): fewer updates of 20 trajectories each,
  as in the paper. The seconds and tokens it saves are part of the comparison, and so is that the
  policy moves less.

Both forms of StarPO-S have clip-higher and no KL term, as in the paper. In the critic's first
iterations PPO does not update the policy, while GRPO does. Further variants, run only when they are
named, take StarPO-S apart: StarPO with PPO and one of its changes, the filter at equal updates,
clip-higher, or no KL term; or they add hindsight imitation to StarPO-S at equal RL updates, at its
own rate whatever RL's is.

``RECIPES`` are others' algorithms by their own configs, with 4 updates of 20 trajectories each a
collection: GRPO as the baseline, and what the field proposes for stability beside it. Two of them
run GRPO with a sampler that is wrong on purpose (``benchmarks.quantized_sampler``), without and
with truncated importance sampling. ``--variants recipes`` names them all.

Writes ``laboratory.json``, ``laboratory.md`` and, with the extra ``figures``, ``laboratory.png``.
After an interruption the same command continues; ``--report`` only writes the tables of what is
there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.grid import ROOT, Cell, Grid, exit_code
from benchmarks.laboratory_report import Run, write_report

ENVIRONMENTS = ("sokoban", "frozen_lake", "bandit")
RATES = {
    "sokoban": (4e-4, 8e-4, 1.2e-3, 1.6e-3, 2.4e-3),
    "frozen_lake": (4e-4, 8e-4, 1.2e-3, 1.6e-3, 2.4e-3),
    "bandit": (1e-3, 2e-3, 4e-3, 8e-3),
}
WARM_START_ITERATIONS = {"sokoban": 20, "frozen_lake": 8, "bandit": 3}
WARM_START = "warm_start"
_CLIP = "--model.algorithm.policy_loss.init_args"
_GRPO = ("--model.algorithm.advantage", "GRPO")
_KL = ("--model.algorithm.kl", "{coef: 0.001, estimator: k3, place: loss}")
"""The KL term of the measurements; the paper's is a penalty on rewards, as in ``starpo.yaml``."""
_HINDSIGHT = (
    *("--data.hindsight.updates", "4", "--data.hindsight.batch_size", "16"),
    *("--data.hindsight.lr", "4e-4"),
)
_COARSE = (
    *("--model.engine", "benchmarks.quantized_sampler.Quantized"),
    *("--model.engine.init_args.bits", "3"),
)
"""A wrong sampler, whose tokens are those of the policy with weights of 3 bits."""
_FIXED, _PROPORTIONAL = (("--data.rollout.scale_updates", kind) for kind in ("false", "true"))


@dataclass(frozen=True)
class Variant:
    """An algorithm, as a config and options over the experiment."""

    name: str
    algorithm: str
    options: tuple[str, ...] = ()
    filters: bool = False
    is_part: bool = False
    """Whether it takes StarPO-S apart or adds to it, or is no StarPO; run only by studies that name
    it."""


RECIPES = (
    Variant("field-grpo", "grpo", is_part=True),
    Variant("sampo", "sampo", is_part=True),
    Variant("sapo", "sapo", is_part=True),
    Variant("cispo", "cispo", is_part=True),
    Variant("epo", "epo", is_part=True),
    Variant("clip-cov", "clip_cov", is_part=True),
    Variant("kl-cov", "kl_cov", is_part=True),
    Variant("mismatch", "grpo", _COARSE, is_part=True),
    Variant("tis", "grpo", (*_COARSE, "--model.algorithm.tis_cap", "2.0"), is_part=True),
)
VARIANTS = (
    Variant("ppo", "starpo", _KL),
    Variant("ppo-s-updates", "starpo_s", _FIXED, filters=True),
    Variant("ppo-s-iterations", "starpo_s", _PROPORTIONAL, filters=True),
    Variant("grpo", "starpo", (*_GRPO, *_KL)),
    Variant("grpo-s-updates", "starpo_s", (*_GRPO, *_FIXED), filters=True),
    Variant("grpo-s-iterations", "starpo_s", (*_GRPO, *_PROPORTIONAL), filters=True),
    Variant("ppo-filter", "starpo", (*_KL, *_FIXED, "--filter.keep_fraction", "0.5"), True, True),
    Variant("ppo-clip-higher", "starpo", (*_KL, f"{_CLIP}.clip_high", "0.28"), is_part=True),
    Variant("ppo-no-kl", "starpo", ("--model.algorithm.kl", "null"), is_part=True),
    Variant("ppo-s-hindsight", "starpo_s", (*_FIXED, *_HINDSIGHT), filters=True, is_part=True),
    Variant(
        "grpo-s-hindsight", "starpo_s", (*_GRPO, *_FIXED, *_HINDSIGHT), filters=True, is_part=True
    ),
    *RECIPES,
)
WHOLE = tuple(variant.name for variant in VARIANTS if not variant.is_part)


@dataclass(frozen=True)
class Study:
    """The size of a laboratory.

    Args:
        env: Name of the experiment.
        rates: Learning rates of the policy.
        seeds: Number of seeds, from ``first_seed`` on.
        first_seed: First seed; the detector is graded on seeds that it was not tuned on.
        variants: Names of the variants to run.
        iterations: Iterations of RL; None takes the laboratory's config.
        keep: Share of groups that StarPO-S keeps.
        one_update: Whether a collection makes one update of all its trajectories instead of four;
            give such a study a folder of its own.
    """

    env: str = "sokoban"
    rates: tuple[float, ...] = RATES["sokoban"]
    seeds: int = 5
    first_seed: int = 0
    variants: tuple[str, ...] = WHOLE
    iterations: int | None = None
    keep: float = 0.5
    one_update: bool = False


def base(env: str, *, one_update: bool = False) -> tuple[str, ...]:
    """Return the configs of every run of a laboratory."""
    overlays = [ROOT / "benchmarks" / "laboratory.yaml"]
    own = ROOT / "benchmarks" / f"laboratory_{env}.yaml"
    overlays += [own] if own.is_file() else []
    overlays += [ROOT / "benchmarks" / "laboratory_one_update.yaml"] if one_update else []
    return ("--config", env, *(part for path in overlays for part in ("--config", str(path))))


def warm_start(env: str, name: str = WARM_START, options: Sequence[str] = ()) -> Cell:
    """Return the cell that imitates the expert and exports its policy."""
    iterations = str(WARM_START_ITERATIONS[env])
    lengths = ("--data.warm_start.iterations", iterations, "--trainer.max_epochs", iterations)
    return Cell(name, (*base(env), *lengths, *options, "--seed_everything", "0"))


def from_warm_start(folder: Path, name: str = WARM_START) -> tuple[str, ...]:
    """Return the options that start a run from there instead of imitating."""
    weights = (folder / name / "policy" / "last").resolve()
    return ("--data.warm_start.iterations", "0", "--model.policy.weights", str(weights))


def runs(study: Study, folder: Path) -> Iterator[Run]:
    """Iterate over the runs of a study, seeds outermost: a partial study is complete for some
    seeds."""
    for seed in range(study.first_seed, study.first_seed + study.seeds):
        for rate in study.rates:
            for variant in VARIANTS:
                if variant.name in study.variants:
                    name = f"{variant.name}/{rate:g}/seed{seed}"
                    cell = Cell(name, arguments(study, variant, folder, rate, seed))
                    yield Run(variant.name, rate, seed, cell)


def arguments(
    study: Study, variant: Variant, folder: Path, rate: float, seed: int
) -> tuple[str, ...]:
    """Return what follows ``fit`` for one run."""
    options = [*variant.options, "--model.optimization.lr", str(rate)]
    if variant.filters:
        options += ["--filter.keep_fraction", str(study.keep)]
    if study.iterations is not None:
        options += ["--trainer.max_epochs", str(study.iterations)]
    start = from_warm_start(folder)
    return (
        *(*base(study.env, one_update=study.one_update), "--config", variant.algorithm),
        *(*start, *options, "--seed_everything", str(seed)),
    )


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    names = [*(variant.name for variant in VARIANTS), "recipes"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for runs, tables and figure")
    parser.add_argument("--env", choices=ENVIRONMENTS, default="sokoban")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rates", type=float, nargs="+", help="of the policy")
    parser.add_argument("--variants", nargs="+", choices=names, default=WHOLE)
    parser.add_argument("--iterations", type=int, help="of RL in every run")
    parser.add_argument("--keep", type=float, default=0.5, help="share of groups StarPO-S keeps")
    parser.add_argument("--one-update", action="store_true", help="of a collection, not four")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--report", action="store_true", help="run nothing, write the tables")
    return parser.parse_args(given)


def variants_named(given: Sequence[str]) -> tuple[str, ...]:
    """Spell out the names of variants, of which ``recipes`` stands for several."""
    recipes = [variant.name for variant in RECIPES]
    return tuple(name for each in given for name in (recipes if each == "recipes" else [each]))


def main(given: Sequence[str] | None = None) -> int:
    """Run the laboratory; return 1 when a run failed."""
    args = parse(given)
    study = Study(
        args.env,
        tuple(args.rates or RATES[args.env]),
        args.seeds,
        args.first_seed,
        variants_named(args.variants),
        args.iterations,
        args.keep,
        args.one_update,
    )
    planned = list(runs(study, args.out))
    failed: list[Cell] = []
    if not args.report:
        if Grid(args.out, keep_weights=True).run([warm_start(args.env)]):
            return 1
        failed = Grid(args.out, args.jobs).run([run.cell for run in planned])
    write_report(args.out, planned)
    return exit_code(failed)


if __name__ == "__main__":
    sys.exit(main())
