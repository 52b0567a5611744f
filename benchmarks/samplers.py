"""Training on the frozen workload: with this library, and with TRL's ``GRPOTrainer``.

Both use GRPO, one optimizer step per collection, token mean, clipping at 0.2 and 0.28, no KL term,
AdamW at the same learning rate, gradients clipped to 1. A step is a whole step of the framework:
collection, log-probs, gradient, optimizer, bookkeeping.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.steps import Steps
from benchmarks.workload import PROMPTS, Clerk, RandomModel, ReadAgain, Workload, pieces
from ragen_pl.algorithms.config import Algorithm, EntropyBonus
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.engines.base import Autocast
from ragen_pl.rollout.engines.in_process import InProcess, InProcessSampler
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import Trajectory, TrajectoryGroup

LEARNING_RATE = 1e-4
ROWS = 16
"""Trajectories of one forward and backward pass."""


@dataclass(frozen=True)
class Setting:
    """What is trained and how.

    Args:
        workload: The dialogue.
        model: Shape of the model.
        bf16: Whether matrix products are in bfloat16, with float32 weights.
        compiled: Whether the framework's own option to compile the model is on.
        steps: Number of steps.
        threads: Number of PyTorch's threads.
        lora: Adapters on a frozen base; None trains all weights.
    """

    workload: Workload
    model: RandomModel
    bf16: bool
    compiled: bool
    steps: int
    threads: int
    lora: LoRA | None = None


class FixedLength(InProcess):
    """An engine whose responses never end early."""

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> InProcessSampler:
        decoder = super().build(language, seed, max_context, autocast)
        decoder.stop_id = -1
        return decoder


class _Boundary(RolloutCallback):
    """A callback that times rollouts, and ends a step at the end of an iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Steps | None = None
        self._begun = 0.0

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        super().on_rollout_start(trainer, module, iteration, num_trajectories)
        self._begun = time.perf_counter()

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        assert self.steps is not None
        self.steps.rollout_seconds.append(time.perf_counter() - self._begun)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        assert self.steps is not None
        self.steps.boundary()


def bare_trainer(epochs: int, bf16: bool, accelerator: str, *callbacks: Callback) -> Trainer:
    """Return a trainer on one device, without logging, checkpoints or validation."""
    return Trainer(
        max_epochs=epochs,
        accelerator=accelerator,
        devices=1,
        precision="bf16-mixed" if bf16 else "32-true",
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )


def ours(setting: Setting) -> Steps:
    """Train with this library."""
    rollout = setting.workload.config
    module = StarPO(
        policy=setting.model,
        lora=setting.lora,
        engine=FixedLength(),
        algorithm=Algorithm(advantage=GRPO(), entropy=EntropyBonus(0.0)),
        optimization=Optimization(
            lr=LEARNING_RATE,
            warmup_iterations=0,
            tokens_per_micro_batch=ROWS * setting.workload.length,
            compile=setting.compiled,
        ),
    )
    module.vocabulary = pieces()
    env = Clerk(setting.workload.words)
    data = RolloutDataModule(env, {"default": env}, prompts=PROMPTS, rollout=rollout)
    boundary = _Boundary()
    trainer = bare_trainer(setting.steps, setting.bf16, "auto", boundary)

    def loop() -> None:
        torch.set_num_threads(setting.threads)  # a thread's own setting
        trainer.fit(module, datamodule=data)

    boundary.steps = Steps(loop)
    return boundary.steps


def trl(setting: Setting) -> Steps:
    """Train with TRL, through its ``rollout_func``: a model with random weights writes no tool
    calls that ``environment_factory`` could parse. The function does the same as TRL's loop over
    tool calls.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    language = setting.model.build(pieces(), 0)
    language.model.set_attn_implementation("sdpa")
    model = setting.lora.attach(language.model, 0) if setting.lora else language.model
    workload = setting.workload

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        begun = time.perf_counter()
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        groups = workload.play(language, ReadAgain(model), trainer.state.global_step)
        played = [trajectory for group in groups for trajectory in group.trajectories]
        assert len(played) == len(prompts)
        boundary.steps.rollout_seconds.append(time.perf_counter() - begun)
        return as_trl(played)

    class Boundary(TrainerCallback):  # type: ignore[misc]
        steps: Steps

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps.boundary()

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        max_steps=setting.steps,
        per_device_train_batch_size=min(ROWS, workload.trajectories),
        gradient_accumulation_steps=max(1, workload.trajectories // ROWS),
        num_generations=workload.group_size,
        max_completion_length=workload.config.max_context,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        gradient_checkpointing=False,
        bf16=setting.bf16,
        torch_compile=setting.compiled,
        use_cpu=not torch.cuda.is_available(),
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    boundary = Boundary()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda earned, **_: earned,
        args=config,
        train_dataset=Dataset.from_dict(
            {"prompt": [str(place) for place in range(workload.num_groups)]}
        ),
        processing_class=language.tokenizer,
        rollout_func=rollout,
        callbacks=[boundary],
    )

    def loop() -> None:
        torch.set_num_threads(setting.threads)
        trainer.train()

    boundary.steps = Steps(loop)
    return boundary.steps


def as_trl(played: Sequence[Trajectory]) -> dict[str, Any]:
    """Return trajectories in the format of a ``rollout_func``: everything after the first prompt is
    the completion, and the mask marks the sampled tokens."""
    columns: dict[str, Any] = {
        name: [] for name in ("prompt_ids", "completion_ids", "env_mask", "earned")
    }
    for trajectory in played:
        first = trajectory.turns[0].prompt_ids
        ids = list(trajectory.token_ids[len(first) :])
        mask = [int(sampled) for sampled in trajectory.loss_mask[len(first) :]]
        row = (list(first), ids, mask, trajectory.total_reward)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return {**columns, "logprobs": None}
