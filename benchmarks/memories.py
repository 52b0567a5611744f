"""Thirty turns of 2048 with each memory: success, tokens read and trained on, peak memory.

``python benchmarks/memories.py OUT_DIR [--seeds 0 1 2] [--iterations 20] [--only State …]``

Each memory trains the same small embedded model with ``memories.yaml``, from the same
demonstrations' starts, in a process of one thread for each seed. Success and return are those of
the final policy on held-out starts; tokens read are what the sampler computed for one trajectory in
the rollouts, sampled tokens among them, which is what remains after its cache; tokens trained on
are the unpadded rows of the optimizer batches. Peak memory is the process's.

Writes ``memories.json`` and prints a table: success for each seed, else means over the seeds, and
the largest peak. It needs the extra ``envs``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lightning.pytorch import LightningModule, Trainer

from benchmarks.memory import peak_mebibytes
from ragen_pl.report.tables import format_table
from ragen_pl.training.access import learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import TrainingBatch, TrajectoryGroup

ROOT = Path(__file__).resolve().parent.parent
CONFIG = Path(__file__).with_suffix(".yaml")
OPTIONS: dict[str, tuple[str, ...]] = {
    "Full": (),
    "Window": ("--data.rollout.memory.turns", "3"),
    "State": (),
    "Compact": ("--data.rollout.memory.budget", "192"),
}
"""Options of each memory beside its name."""
TEMPERATURE = 0.5
"""Of the evaluations whose scores are told."""
COSTS = "memory_costs.json"


class MemoryCosts(RolloutCallback):
    """What the rollouts and updates of a run read, as ``memory_costs.json`` in its folder."""

    def __init__(self) -> None:
        super().__init__()
        self._before = 0
        self._costs: dict[str, float] = {"read": 0, "trajectories": 0, "rows": 0, "trained": 0}

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Remember what was read before, by evaluations."""
        super().on_rollout_start(trainer, module, iteration, num_trajectories)
        self._before = _tokens_processed(module)

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Count what the collection read."""
        self._costs["read"] += _tokens_processed(module) - self._before
        self._costs["trajectories"] += sum(len(group.trajectories) for group in groups)

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        """Count what the update reads."""
        self._costs["rows"] += len(batch)
        self._costs["trained"] += int(batch.lengths.sum())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the counts."""
        path = Path(trainer.default_root_dir) / COSTS
        path.write_text(json.dumps({**self._costs, "peak_mib": peak_mebibytes()}))


def _tokens_processed(module: LightningModule) -> int:
    return int(getattr(learner(module).sampler.engine, "tokens_processed", 0))


def train(name: str, seed: int, folder: Path, iterations: int) -> None:
    """Train with one memory in a process of its own, for ``iterations`` of RL."""
    warm = int(yaml.safe_load(CONFIG.read_text())["data"]["warm_start"]["iterations"])
    command = (
        *(sys.executable, str(ROOT / "run.py"), "fit", "--config", str(CONFIG)),
        *("--run_dir", str(folder), "--data.rollout.memory", name, *OPTIONS[name]),
        *("--trainer.callbacks+=benchmarks.memories.MemoryCosts", "--report.write", "never"),
        *("--seed_everything", str(seed), "--trainer.max_epochs", str(warm + iterations)),
        *("--threads", "1"),
    )
    subprocess.run(command, cwd=ROOT, check=True)


def read(folder: Path) -> dict[str, Any]:
    """Return what a finished run scored and cost."""
    costs = json.loads((folder / COSTS).read_text())
    results = json.loads((folder / "results.json").read_text())
    scores = {
        each["policy"]: each
        for each in results["evaluations"]
        if each["temperature"] in (None, TEMPERATURE)
    }
    final, played = scores["final"], costs["trajectories"]
    return {
        "random": scores["random"]["success"],
        "expert": scores["expert"]["success"],
        "warm_started": scores["warm-started"]["success"],
        "success": final["success"],
        "interval": [final["low"], final["high"]],
        "return": final["mean_return"],
        "sequences": costs["rows"] / played,
        "read": costs["read"] / played,
        "trained": costs["trained"] / played,
        "peak_mib": costs["peak_mib"],
        "seconds": results["seconds"],
    }


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of all memories, of which each has a run for every seed."""
    rows = [
        ["memory", "imitated", "success", "return", "sequences", "read", "trained on", "peak MiB"]
    ]
    for name, runs in found.items():
        peak = max(run["peak_mib"] for run in runs)
        rows.append(
            [
                name,
                " ".join(f"{run['warm_started']:.2f}" for run in runs),
                " ".join(
                    f"{run['success']:.2f} ({run['interval'][0]:.2f}-{run['interval'][1]:.2f})"
                    for run in runs
                ),
                f"{_mean(runs, 'return'):.2f}",
                f"{_mean(runs, 'sequences'):.1f}",
                f"{_mean(runs, 'read'):,.0f}",
                f"{_mean(runs, 'trained'):,.0f}",
                f"{peak:,.0f}",
            ]
        )
    return format_table(rows)


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return fmean(float(run[key]) for run in runs)


def main(argv: Sequence[str] | None = None) -> None:
    """Train with each memory, unless its run is there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=20, help="of RL")
    parser.add_argument("--only", nargs="+", choices=list(OPTIONS), default=list(OPTIONS))
    options = parser.parse_args(argv)
    folder = options.folder.resolve()
    runs = {
        (name, seed): folder / f"{name.lower()}_{seed}"
        for seed in options.seeds
        for name in options.only
    }
    for (name, seed), run in runs.items():
        if not (run / COSTS).exists():
            train(name, seed, run, options.iterations)
    found = {name: [read(runs[name, seed]) for seed in options.seeds] for name in options.only}
    (folder / "memories.json").write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
