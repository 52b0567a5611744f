"""Thirty turns of 2048 with each memory: success, tokens read and trained on, peak memory.

``python benchmarks/memories.py OUT_DIR [--iterations 12] [--only State …]``

Each memory trains the same small embedded model with ``memories.yaml``, from the same
demonstrations' starts, in a process of one thread. Success and return are those of the final policy
on held-out starts; tokens read are what the sampler computed for one trajectory in the rollouts,
sampled tokens among them, which is what remains after its cache; tokens trained on are the
unpadded rows of the optimizer batches. Peak memory is the process's.

Writes ``memories.json`` and prints a table. It needs the extra ``envs``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def train(name: str, folder: Path, more: Sequence[str]) -> None:
    """Train with one memory in a process of its own."""
    command = (
        *(sys.executable, str(ROOT / "run.py"), "fit", "--config", str(CONFIG)),
        *("--run_dir", str(folder), "--data.rollout.memory", name, *OPTIONS[name]),
        *("--trainer.callbacks+=benchmarks.memories.MemoryCosts", "--report.write", "never"),
        *("--threads", "1", *more),
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


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table of all memories."""
    rows = [
        ["memory", "imitated", "success", "return", "sequences", "read", "trained on", "peak MiB"]
    ]
    for name, facts in found.items():
        low, high = facts["interval"]
        rows.append(
            [
                name,
                f"{facts['warm_started']:.2f}",
                f"{facts['success']:.2f} ({low:.2f}-{high:.2f})",
                f"{facts['return']:.2f}",
                f"{facts['sequences']:.1f}",
                f"{facts['read']:,.0f}",
                f"{facts['trained']:,.0f}",
                f"{facts['peak_mib']:,.0f}",
            ]
        )
    return format_table(rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Train with each memory, unless its run is there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--iterations", type=int, default=12, help="of RL")
    parser.add_argument("--only", nargs="+", choices=list(OPTIONS), default=list(OPTIONS))
    options = parser.parse_args(argv)
    folder = options.folder.resolve()
    for name in options.only:
        run = folder / name.lower()
        if not (run / COSTS).exists():
            warm = 3  # as in memories.yaml
            train(name, run, ("--trainer.max_epochs", str(warm + options.iterations)))
    found = {name: read(folder / name.lower()) for name in options.only}
    (folder / "memories.json").write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
