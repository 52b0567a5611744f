"""Train in one process or as one of several: ``python -m tests.support.distributed_job FOLDER
STRATEGY…``.

Everything is the application's own but what the policy says in the scripted runs, which is a
function of the request alone.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer

from callbacks import (
    EchoTrapDetector,
    EntropyLogger,
    GradientProbe,
    MutualInformation,
    PolicyChange,
    Rollback,
    RolloutMetrics,
    VarianceFilter,
)
from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.algorithms.optimization import Muon, Optimization
from ragen_pl.distributed.collectives import gather_objects, rank
from ragen_pl.distributed.fsdp import FSDP2
from ragen_pl.distributed.sharding import full_state_dict, full_tensor
from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boards import mask_of
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sokoban.search import Board, shortest_plan
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.kernels import row_threads
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.curriculum import Curriculum, TargetSuccess, Uniform
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.memory import Full, Memory, Window
from ragen_pl.rollout.mixture import MixtureConfig
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.self_distillation import SelfDistillation
from ragen_pl.rollout.teachers import (
    Explorer,
    Offline,
    RecordedWorldModel,
    Solver,
    Teacher,
    WorldModel,
)
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import Completion, Request, Sampling, TrajectoryGroup
from tests.support.recorded_play import record_expert

WARM, HEALTHY = 1, 6
"""Iterations of imitation, and of RL before the scripted policy falls silent."""
RUNS = {
    "scripted": 11,
    "dynamic": 4,
    "window": 3,
    "lora": 4,
    "single_precision": 2,
    "sampled": 3,
    "lora_sampled": 3,
    "idle_sampled": 3,
    "mixture_sampled": 4,
    "muon": 2,
    "bf16": 2,
    "bf16_sampled": 3,
    "distilled": 2,
    "offline": 2,
    "lora_recorded": 2,
    **({"explorer": 2} if find_spec("stable_baselines3") else {}),
}
"""Iterations of each run, warm start included."""
COPIED = ("scripted", "lora_sampled", "muon", "bf16")
"""Runs that are played with two copies of two shards, too."""
TAUGHT = ("distilled", "offline", "lora_recorded", "explorer")
"""Runs with other teachers than the expert at play."""
DOUBLE = ("scripted", "dynamic", "window", "distilled")
"""Runs in double precision."""
PLAY = "play.jsonl"
"""File of recorded play in the job's folder."""
SEEDS = {"sampled": 1}
"""Where not 0. Tokens are compared one by one, and of some seed's a thousand draws one lies within
rounding of the next token's share."""


class Scripted(StarPO):
    """Say what a script says: in groups of odd identity nothing that differs between members, in
    the others the solution, too, so that there is something to imitate in hindsight."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers: list[dict[tuple[int, ...], tuple[int, ...]]] = []
        """The tokens of each test's answers, by question, of this rank's share."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        if sampling.temperature > 0:
            return [self._say(request) for request in requests]
        # A teacher's questions, which the weights have to answer.
        given = super().generate(requests, sampling)
        pairs = zip(requests, given, strict=True)
        self.answers.append({asked.prefix_ids: said.token_ids for asked, said in pairs})
        return given

    def _say(self, request: Request) -> Completion:
        episode = request.episode
        key = (episode.iteration, episode.group_id, episode.member, request.number)
        draw = random.Random(repr(key))
        chat = self.trainer.datamodule.dialogues.chat(self)  # type: ignore[attr-defined]
        if episode.iteration < WARM + HEALTHY and episode.group_id % 2 == 0:
            actions = [draw.choice(Sokoban.actions) for _ in range(1 + episode.member % 2)]
            if episode.member == 2:
                actions = self._solution(request) or actions
            text = chat.response_text("go " * draw.randint(0, 4), actions)
        else:
            text = "x" * draw.randint(1, 30)
        ids = (*chat.encode([text])[0], chat.markers.end)
        return Completion(ids, (-0.5,) * len(ids), (0.5,) * len(ids), stopped=True)

    def _solution(self, request: Request) -> list[str]:
        """Solve the room that the prompt shows."""
        tokenizer = self.trainer.datamodule.dialogues.chat(self).tokenizer  # type: ignore[attr-defined]
        shown = tokenizer.decode(request.prefix_ids).rpartition("State:\n")[2].split("\n")
        marks = "".join(row[:6] for row in shown[:6])

        def cells(symbols: str) -> int:
            return mask_of(cell for cell, mark in enumerate(marks) if mark in symbols)

        board = Board(6, cells("#"), cells("O√S"))
        player = next(cell for cell, mark in enumerate(marks) if mark in "PS")
        return list(shortest_plan(board, player, cells("X√")) or ())[:2]


class Whereabouts(RolloutCallback):
    """Keep where this rank is in ``rank-<n>.phase``, for the watchdog.

    Args:
        folder: Of that file.
        name: Of the run.
    """

    def __init__(self, folder: str, name: str) -> None:
        super().__init__()
        self.folder, self.name = Path(folder), name

    def enter(self, phase: str, module: Any) -> None:
        file = self.folder / f"rank-{rank()}.phase"
        file.write_text(f"{phase} of iteration {module.iteration} ({self.name})")

    def on_rollout_start(self, trainer: Trainer, module: Any, *args: int) -> None:
        self.enter("collection", module)

    def on_rollout_end(self, trainer: Trainer, module: Any, groups: Any) -> None:
        self.enter("selection", module)

    def on_train_batch_start(self, trainer: Trainer, module: Any, *args: Any) -> None:
        self.enter("update", module)

    def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
        self.enter("the end", module)


class Diary(Whereabouts):
    """Note what must not depend on the number of ranks."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(str(folder), name)
        self.tokens: list[dict[tuple[int, int], list[tuple[int, ...]]]] = []
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.metrics: list[dict[str, float]] = []
        self.answers: list[dict[tuple[int, ...], tuple[int, ...]]] = []
        """The tokens of each test's answers, by question."""

    def on_rollout_end(self, trainer: Trainer, module: Any, groups: list[TrajectoryGroup]) -> None:
        super().on_rollout_end(trainer, module, groups)
        own = {
            (t.group_id, t.member): [turn.completion.token_ids for turn in t.turns]
            for group in groups
            for t in group.trajectories
        }
        self.tokens.append({k: v for part in gather_objects(own) for k, v in part.items()})

    def on_before_optimizer_step(self, trainer: Trainer, module: Any, optimizer: Any) -> None:
        self.gradients.append(
            {
                name: full_tensor(weight.grad).clone()
                for name, weight in module.named_parameters()
                if weight.grad is not None
            }
        )

    def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
        super().on_train_epoch_end(trainer, module)
        weights = {name: value.clone() for name, value in full_state_dict(module).items()}
        self.weights.append(weights)
        self.metrics.append({k: float(v) for k, v in trainer.callback_metrics.items()})
        shares = gather_objects(getattr(module, "answers", []))
        self.answers = [
            {question: ids for own in parts for question, ids in own.items()}
            for parts in zip(*shares, strict=True)
        ]


@contextmanager
def double_precision(on: bool) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if on else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_module(
    kind: type[StarPO], lora: LoRA | None = None, lr: float = 1e-3, **optimization: Any
) -> StarPO:
    """Make a policy with critic and reference; with adapters, one that is all three."""
    critic = CriticConfig(warmup_iterations=0, backbone="separate" if lora is None else "shared")
    return kind(
        policy=EmbeddedModel(16, 16, num_layers=2, num_heads=2, num_key_value_heads=1),
        algorithm=Algorithm(
            advantage=GAE(critic=critic), kl=KLPenalty(0.1) if lora is None else None
        ),
        lora=lora,
        # The gradients are to be seen as they come, and micro-batches to differ in number.
        optimization=Optimization(
            lr=lr, max_grad_norm=1e9, tokens_per_micro_batch=600, **optimization
        ),
        hindsight_lr=1e-3,
    )


def make_data(
    run_seed: int = 0,
    curriculum: Curriculum = Uniform(),  # noqa: B008  frozen, so sharing it is safe
    dynamic_sampling: DynamicSampling | None = None,
    memory: Memory = Full(),  # noqa: B008
    mixes: bool = False,
    teacher: Teacher = Solver(),  # noqa: B008
    distillation: SelfDistillation | None = None,
    is_small: bool = False,
) -> RolloutDataModule:
    worlds: dict[str, TextEnv] = {"sokoban": Sokoban(), "bandit": Bandit()} if mixes else {}
    return RolloutDataModule(
        env=None if mixes else Sokoban(),
        envs=worlds,
        mixture=MixtureConfig(shares={"sokoban": 3.0, "bandit": 1.0} if mixes else {}),
        eval_sets={"sokoban" if mixes else "default": Sokoban(split="eval")},
        rollout=RolloutConfig(
            num_groups=1 if is_small else 2,  # one leaves a rank without
            online_k=1 if is_small else 2,
            group_size=3,
            max_turns=4 if memory.cuts else 2,
            max_actions_per_turn=2,
            max_response_tokens=40,
            max_context=420,
            memory=memory,
        ),
        warm_start=WarmStart(
            iterations=WARM,
            updates_per_iteration=2,
            batch_size=5,
            demonstrations=6,
            teacher=teacher,
        ),
        hindsight=HindsightImitation(
            updates=1, batch_size=5, variants=3, opening=2, symmetries=True
        ),
        distillation=distillation,
        evaluation=EvaluationConfig(size=2),
        curriculum=curriculum,
        dynamic_sampling=dynamic_sampling,
        run_seed=run_seed,
    )


def record_play(folder: Path) -> None:
    """Write what the teachers of recorded play read."""
    rollout = RolloutConfig(max_turns=2, max_actions_per_turn=2, max_response_tokens=40)
    record_expert(folder / PLAY, Sokoban(), rollout, Prompts())


def teacher_of(run: str, folder: Path) -> Teacher:
    """Return who teaches in a run."""
    files = (str(folder / PLAY),)
    match run:
        case "distilled":
            return WorldModel(held_out=3)
        case "offline":
            return Offline(files)
        case "lora_recorded":
            return RecordedWorldModel(files, held_out=3)
        case "explorer":
            return Explorer(steps=100, starts=4, attempts=16, layers=(16,))
    return Solver()


def play(
    run: str, folder: Path, strategy: Any, accelerator: Any = "cpu", **trainer: Any
) -> dict[str, Any]:
    """Train as one of the ranks and return what must be the same however many there are, and
    wherever they compute."""
    diary = Diary(folder, run)
    detector = EchoTrapDetector(baseline_iterations=3)
    rollback = Rollback(times=1, patience=1, every_n_iterations=1, min_age=1, filter_factor=0.5)
    chosen = VarianceFilter(0.5, include_zero=run.endswith("sampled"))
    change = PolicyChange(3, always=True)  # fewer than are kept, and odd
    watchers: list[Callback] = [
        change,
        detector,
        rollback,
        EntropyLogger(),
        RolloutMetrics(),
        diary,
    ]
    if run == "idle_sampled":
        watchers.remove(change)  # its passes, the same on all ranks, would come before the update
    callbacks: list[Callback] = [chosen, *watchers]
    if run in ("single_precision", "window", "bf16"):  # they use the policy in ways of their own
        callbacks[:0] = [MutualInformation(1, num_prompts=4), GradientProbe(1, num_buckets=2)]
    with double_precision(run in DOUBLE):
        if run.endswith("sampled"):  # blocks are sharded and computed twice
            lora = LoRA(rank=4, alpha=8) if run == "lora_sampled" else None
            module = make_module(StarPO, lora, gradient_checkpointing=True)
        else:
            lora = LoRA(rank=4, alpha=8) if run in ("lora", "lora_recorded") else None
            lr = 1e-3 if lora is None else 3e-3  # adapters begin at zero and change little
            module = make_module(Scripted, lora, lr, muon=Muon() if run == "muon" else None)
        chosen_by_success = TargetSuccess(pool_factor=2)  # over enough iterations to matter
        curriculum = chosen_by_success if run == "scripted" else Uniform()
        again = DynamicSampling(3) if run == "dynamic" else None
        memory = Window(2) if run == "window" else Full()
        data = make_data(
            *(SEEDS.get(run, 0), curriculum, again, memory, run.startswith("mixture")),
            teacher_of(run, folder),
            SelfDistillation(lessons=3) if run == "distilled" else None,
            run == "idle_sampled",
        )
        module.vocabulary = list(data.vocabulary())
        fitted = Trainer(
            strategy=strategy,
            accelerator=accelerator,
            precision="bf16-mixed" if run.startswith("bf16") else None,
            max_epochs=RUNS[run],
            default_root_dir=folder,
            logger=False,
            callbacks=callbacks,
            enable_model_summary=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            **trainer,
        )
        fitted.fit(module, datamodule=data)
    return {
        "lessons": data.teaching.demonstrations(fitted).input_ids,
        "answers": diary.answers,
        "tokens": diary.tokens,
        "gradients": diary.gradients,
        "weights": diary.weights,
        "metrics": diary.metrics,
        "levels": detector.state_dict(),
        "rollbacks": rollback.events,
    }


def strategy_of(name: str) -> Any:
    """Return a strategy of two nodes."""
    match name:
        case "fsdp":
            return FSDP2(timeout_minutes=1)
        case "hsdp":
            return FSDP2(timeout_minutes=1, replicas="nodes")
    return name


def main(folder: Path, strategies: Sequence[str]) -> None:
    """Be one of two nodes, with a rank each, or with two where a copy of shards is on each node."""
    torch.set_num_threads(2)
    row_threads._LEAST_TOKENS = 4  # one process alone has one thread, and all rows in it
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    for strategy in strategies:
        for run in COPIED if strategy == "hsdp" else RUNS:
            found = play(run, folder, strategy_of(strategy), devices=devices, num_nodes=2)
            if rank() == 0:
                torch.save(found, folder / f"{strategy}-{run}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
