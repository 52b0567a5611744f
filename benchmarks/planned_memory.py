"""Planned against measured peaks of memory, by phase of an iteration.

``python benchmarks/planned_memory.py OUT.json [--case embedded] [--device cuda]``

Each case is trained for two iterations (real rollout, score pass and update under Lightning) in a
process of its own. The largest resident size of every phase of the last iteration is read, less the
size of the process before its networks were built. Large blocks are returned to the system at once
(``MALLOC_MMAP_THRESHOLD_``), so that the size is that of live memory. On a GPU it is the memory of
PyTorch's tensors that is read.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ragen_pl.runtime.wait_policy import limit_spinning

    limit_spinning()  # before PyTorch is loaded, as the command does

from lightning.pytorch import LightningModule, Trainer

from benchmarks.memory import device_mebibytes, device_peak_mebibytes, forget_device_peak
from benchmarks.samplers import FixedLength, bare_trainer
from benchmarks.workload import MODELS, PROMPTS, Clerk, RandomModel, Workload, pieces
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GAE, GRPO, CriticConfig
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.cli.plan.inputs import Cluster, PlanInput
from ragen_pl.cli.plan.memory import Planner
from ragen_pl.models.lora import LoRA
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.report.tables import format_table
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import Selection, TrajectoryGroup

PHASES = ("rollout", "score pass", "update")
_MEBI = 1 << 20


@dataclass(frozen=True)
class Case:
    """One training configuration.

    Args:
        model: The language model.
        workload: The dialogues.
        critic: Whether a critic is trained.
        lora: Adapters; None trains all weights.
        micro_batch_rows: Trajectories of a micro-batch.
        checkpointing: Whether to use gradient checkpointing.
        bf16: Whether to train in bf16-mixed.
    """

    model: RandomModel
    workload: Workload
    critic: bool = True
    lora: LoRA | None = None
    micro_batch_rows: int = 16
    checkpointing: bool = False
    bf16: bool = False

    @property
    def rollout(self) -> RolloutConfig:
        """The sizes of the workload, with contexts that its trajectories fill."""
        return replace(self.workload.config, max_context=self.workload.length)

    @property
    def plan_input(self) -> PlanInput:
        """The input of the plan."""
        return PlanInput(
            architecture=self.model.architecture(pieces()),
            trainable=TrainableModel(self.model, self.lora, self.checkpointing, 0),
            algorithm=Algorithm(
                advantage=GAE(critic=CriticConfig(warmup_iterations=0)) if self.critic else GRPO()
            ),
            optimization=Optimization(
                tokens_per_micro_batch=self.micro_batch_rows * self.rollout.max_context,
                gradient_checkpointing=self.checkpointing,
            ),
            rollout=self.rollout,
            bf16=self.bf16,
            cuda_graphs=False,
        )


CASES = {
    # The default Sokoban model; as many trajectories of its length, in larger micro-batches.
    "embedded": Case(
        RandomModel(vocabulary=1024),
        Workload(num_groups=8, group_size=8, turns=5, words=24, response=40),
        micro_batch_rows=32,
        bf16=True,
    ),
    # A Llama of 113M parameters: adapters on a frozen base, gradient checkpointing.
    "lora": Case(
        RandomModel(768, 2048, 12, 12, 4, vocabulary=49152, attention="sdpa"),
        Workload(num_groups=1, group_size=8, turns=2, words=48, response=16),
        lora=LoRA(rank=64, alpha=64),
        micro_batch_rows=4,
        checkpointing=True,
    ),
    "small": Case(
        RandomModel(256, 1024, 4, 4, 2, vocabulary=4096, attention="sdpa"),
        Workload(num_groups=2, group_size=8, turns=3, words=16, response=16),
    ),
    # For GPUs.
    "0.5b": Case(
        replace(MODELS["0.5b"], attention="sdpa"),
        Workload(num_groups=4, group_size=8, turns=2, words=64, response=64),
        micro_batch_rows=8,
        bf16=True,
    ),
    "1.5b-lora": Case(
        replace(MODELS["1.5b"], attention="sdpa", dtype="bfloat16"),
        Workload(num_groups=4, group_size=16, turns=2, words=64, response=128),
        lora=LoRA(rank=64, alpha=64),
        micro_batch_rows=8,
        checkpointing=True,
        bf16=True,
    ),
}


class _Phases(RolloutCallback):
    """The peak of every phase of the latest iteration.

    Args:
        device: Where the memory is.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.peaks: dict[str, float] = {}
        self.longest = 0

    def on_rollout_start(self, *_: Any) -> None:
        forget_device_peak(self.device)

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> Selection | None:
        self._end("rollout")
        self.longest = len(groups[0].trajectories[0].token_ids)
        return None

    def on_train_batch_start(self, *_: Any) -> None:
        self._end("score pass")

    def on_train_batch_end(self, *_: Any) -> None:
        self._end("update")

    def _end(self, phase: str) -> None:
        self.peaks[phase] = device_peak_mebibytes(self.device)
        forget_device_peak(self.device)


def train(case: Case, iterations: int, device: str = "cpu") -> dict[str, float]:
    """Train and return the peak of each phase of the last iteration, in MiB."""
    plan_input = case.plan_input
    module = StarPO(
        policy=replace(case.model, device=device),
        engine=FixedLength(),
        algorithm=plan_input.algorithm,
        optimization=plan_input.optimization,
        lora=case.lora,
    )
    module.vocabulary = pieces()
    env = Clerk(case.workload.words)
    data = RolloutDataModule(env, {"default": env}, prompts=PROMPTS, rollout=case.rollout)
    phases = _Phases(device)
    accelerator = "gpu" if device == "cuda" else device
    trainer = bare_trainer(iterations, case.bf16, accelerator, phases)
    trainer.fit(module, datamodule=data)
    assert phases.longest == case.rollout.max_context, "trajectories must fill their contexts"
    return phases.peaks


def measured(name: str, device: str = "cpu") -> dict[str, float]:
    """Return the memory that each phase adds to a fresh process, in MiB."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.planned_memory"]
    done = subprocess.run(
        [*command, "--measure", name, "--device", device],
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def planned(name: str, device: str = "cpu") -> dict[str, float]:
    """Return the planned memory of each phase, in MiB."""
    given = replace(CASES[name].plan_input, device=device.partition(":")[0])
    memory = Planner(given).plan(Cluster())
    return {phase: memory.totals[phase] / _MEBI for phase in PHASES}


def _measure(name: str, device: str) -> dict[str, float]:
    case = CASES[name]
    # Libraries load on first use: run an iteration of a tiny model in the same dtypes first.
    small = RandomModel(32, 32, 1, 2, 1, attention=case.model.attention, dtype=case.model.dtype)
    tiny = replace(case, model=small, workload=Workload(2, 2, 1, 4, 4), micro_batch_rows=2)
    train(tiny, 1, device)
    before = device_mebibytes(device)
    return {phase: peak - before for phase, peak in train(case, 2, device).items()}


Sizes = dict[str, dict[str, dict[str, float]]]


def compare(names: Sequence[str], device: str = "cpu") -> Sizes:
    """Print the table, and return planned and measured MiB by case and phase."""
    results = {
        name: {"planned": planned(name, device), "measured": measured(name, device)}
        for name in names
    }
    rows = [["case", "phase", "planned MiB", "measured MiB", "ratio"]]
    for name, result in results.items():
        for phase in PHASES:
            plan, real = result["planned"][phase], result["measured"][phase]
            rows.append([name, phase, f"{plan:.0f}", f"{real:.0f}", f"{plan / real:.2f}"])
    print(format_table(rows))
    return results


def main() -> None:
    """Measure the cases and write them, or measure one in this process."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument("--case", action="append", choices=CASES, help="a case; all by default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(_measure(args.measure, args.device)))
        return
    results = compare(args.case or ["embedded", "lora"], args.device)
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
