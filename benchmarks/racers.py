"""The sides of ``time_to_score.py``: this library, and TRL's ``GRPOTrainer``, from one policy.

A side is a training loop that runs step by step, so that several can take turns in one process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from benchmarks.samplers import as_trl, bare_trainer
from benchmarks.steps import Steps
from benchmarks.workload import ReadAgain
from callbacks import VarianceFilter
from ragen_pl.cli.application import Application, run
from ragen_pl.cli.config.files import prepare
from ragen_pl.cli.configured_parts import Unstarted
from ragen_pl.models.base import LanguageModel
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import collect
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.evaluation.results import EvalResult, summarize
from ragen_pl.training.trainer import rollout_callbacks
from ragen_pl.types import Generate, Sampling, TrajectoryGroup

MOST_ROWS = 32
"""Most trajectories of TRL's forward and backward pass."""
WARMUP_STEPS = 10
"""Optimizer steps of TRL's learning rate warmup, as many as ours has."""


def prepared(options: Sequence[str], threads: int) -> Unstarted:
    """Build the parts of a real command."""
    with tempfile.TemporaryDirectory(prefix="race-") as folder:  # nothing runs, nothing is written
        line = ["fit", *options, "--threads", str(threads), "--run_dir", folder]
        return run(prepare(line), Unstarted)


class Side:
    """A training loop with a clock that runs only during its steps.

    Args:
        name: Name in tables.
        policy: Function that returns the model that is trained, once the loop is set up.
    """

    def __init__(self, name: str, policy: Callable[[], LanguageModel]) -> None:
        self.name, self.policy = name, policy
        self.seconds = self.core_seconds = 0.0
        self.trajectories = 0
        self._steps: Steps | None = None

    @property
    def steps(self) -> Steps:
        """The loop; its first step is set-up."""
        assert self._steps is not None
        return self._steps

    def train_with(self, loop: Callable[[], object], threads: int) -> None:
        """Set the loop, which must call ``boundary`` after its set-up and after every step."""

        def threaded() -> None:
            torch.set_num_threads(threads)  # a thread's own setting
            loop()

        self._steps = Steps(threaded)

    def boundary(self) -> None:
        """End a step of the loop."""
        self.steps.boundary()

    def step(self) -> None:
        """Run a step by the clock."""
        begun, spent = time.perf_counter(), time.process_time()
        self.steps.step()
        self.seconds += time.perf_counter() - begun
        self.core_seconds += time.process_time() - spent


class _Boundaries(RolloutCallback):
    """Ends a step before the first rollout and after every iteration, and counts trajectories."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side, self._is_set_up = side, False

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        super().on_rollout_start(trainer, module, iteration, num_trajectories)
        if not self._is_set_up:
            self._is_set_up = True
            self.side.boundary()

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        self.side.trajectories += sum(len(group.trajectories) for group in groups)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self.side.boundary()


def ours(name: str, options: Sequence[str], threads: int) -> Side:
    """Train with this library; a step is an iteration.

    The parts are those of the real command, without its logs, checkpoints and evaluations.
    """
    app = prepared(options, threads)
    side = Side(name, lambda: app.model.language)
    chosen = [c for c in rollout_callbacks(app.trainer) if isinstance(c, VarianceFilter)]
    length = app.trainer.max_epochs
    assert length is not None
    trainer = bare_trainer(length, _is_bf16(app), "auto", *chosen, _Boundaries(side))
    side.train_with(lambda: trainer.fit(app.model, datamodule=app.datamodule), threads)
    return side


def _is_bf16(app: Application) -> bool:
    return bool(app.trainer.precision == "bf16-mixed")


@dataclass(frozen=True)
class TRLSettings:
    """Settings of TRL's side.

    Args:
        rate: Learning rate, constant after a short warmup.
        loss: ``loss_type`` of ``GRPOConfig``: dapo (TRL's default, a mean over tokens), grpo or
            dr_grpo, whose rewards are not divided by their spread.
        engine: generate, what TRL offers without a server: ``model.generate`` on whole prefixes
            in every turn; ours, this library's sampler.
    """

    rate: float
    loss: str = "dapo"
    engine: str = "generate"

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"TRL {self.loss}, {self.rate:g}" + (", our sampler" * (self.engine == "ours"))


def trl(settings: TRLSettings, options: Sequence[str], threads: int) -> Side:
    """Train with TRL; a step is an optimizer step.

    Its rollouts come from a ``rollout_func``: the same environment, prompts, starts, group size,
    collection and rewards as ours. Trajectories of a collection are split into as many optimizer
    steps, and the ratio is clipped at the same bounds; there is no KL term.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    app = prepared(options, threads)
    data, config, clip = app.datamodule, app.datamodule.rollout, app.model.algorithm.policy_loss
    language = app.model.trainable.policy.build(app.model.vocabulary, app.model.seed)
    language.model.set_attn_implementation("sdpa")
    chat = Chat(
        data.prompts, language.tokenizer, language.markers, data.dialogues.max_actions_per_turn
    )
    side, collections = Side(settings.name, lambda: language), iter(range(1 << 30))
    generate = _generate(settings, language, config.max_context, app.model.seed)

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        number = next(collections)
        if isinstance(generate, InProcessSampler):
            generate.reset()  # the weights have changed
        groups = collect(
            data.env,
            data.starts.group_seeds(number, 0),
            chat,
            generate,
            config,
            iteration=number,
            sampling=Sampling(config.temperature, config.max_response_tokens),
        )
        played = [trajectory for group in groups for trajectory in group.trajectories]
        assert len(played) == len(prompts)
        side.trajectories += len(played)
        return as_trl(played)

    class Boundary(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            side.boundary()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            side.boundary()

    per_step = config.num_groups * config.group_size
    rows = max(count for count in range(1, MOST_ROWS + 1) if per_step % count == 0)
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        max_steps=1 << 30,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=per_step // rows,
        steps_per_generation=per_step // rows * config.online_k,
        num_generations=config.group_size,
        max_completion_length=config.max_context,
        learning_rate=settings.rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARMUP_STEPS,
        max_grad_norm=app.model.optimization.max_grad_norm,
        beta=0.0,
        loss_type=settings.loss,
        scale_rewards="none" if settings.loss == "dr_grpo" else "group",
        epsilon=clip.clip_low,
        epsilon_high=clip.clip_high,
        temperature=config.temperature,
        gradient_checkpointing=False,
        bf16=_is_bf16(app),
        use_cpu=not torch.cuda.is_available(),
        seed=app.model.seed,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    starts = config.num_groups * config.online_k
    trainer = GRPOTrainer(
        model=language.model,
        reward_funcs=lambda earned, **_: earned,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(starts)]}),
        processing_class=language.tokenizer,
        rollout_func=rollout,
        callbacks=[Boundary()],
    )
    side.train_with(trainer.train, threads)
    return side


def _generate(
    settings: TRLSettings, language: LanguageModel, max_context: int, seed: int
) -> Generate:
    if settings.engine == "generate":
        return ReadAgain(language.model, language.markers.end)
    return InProcessSampler(
        language.model, stop_id=language.markers.end, seed=seed, max_context=max_context
    )


class Judge:
    """Success on the evaluation set of a command, in float32, with a model of its own.

    Args:
        options: The command's options.
        threads: Number of PyTorch's threads.
    """

    def __init__(self, options: Sequence[str], threads: int) -> None:
        app = prepared(options, threads)
        self._data = data = app.datamodule
        self._language = app.model.trainable.build(app.model.vocabulary)
        self._chat = Chat(
            data.prompts,
            self._language.tokenizer,
            self._language.markers,
            data.dialogues.max_actions_per_turn,
        )
        self._sampler = InProcessSampler(
            self._language.model,
            stop_id=self._language.markers.end,
            seed=app.model.seed,
            max_context=data.rollout.max_context,
        )

    @torch.no_grad()
    def __call__(self, policy: LanguageModel) -> EvalResult:
        """Play every initial state once with a policy's weights."""
        self._language.model.load_state_dict(policy.model.state_dict())
        self._sampler.reset()
        data = self._data
        chosen = data.evaluator.evaluation_set(next(iter(data.eval_sets)))
        temperature = data.evaluation.temperature
        groups = collect(
            chosen.env,
            chosen.group_seeds,
            self._chat,
            self._sampler,
            replace(data.rollout, group_size=1),
            iteration=chosen.noise_iteration(temperature),
            sampling=Sampling(temperature, data.rollout.max_response_tokens),
        )
        return summarize(groups)
