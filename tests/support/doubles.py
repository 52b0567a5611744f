"""Make small trajectories and trainers by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from ragen_pl.distributed.snapshot import take_snapshot
from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.actors import Actor
from ragen_pl.rollout.hindsight import Solutions
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import (
    clear_iteration_metrics,
    is_discarded,
    is_done,
    rollout_callbacks,
)
from ragen_pl.types import Completion, FormatFault, StopReason, Trajectory, TrajectoryGroup, Turn


def make_turn(
    reward: float = 0.0,
    *,
    fault: FormatFault | None = None,
    response: str = "Up</answer>",
    thought: str = "",
    entropies: Sequence[float] = (0.5, 0.5),
    thought_correct: bool | None = None,
    thought_grounding: float | None = None,
) -> Turn:
    """Make a turn whose format penalty, where it applies, is -0.1."""
    n = len(entropies)
    return Turn(
        prompt_ids=(1, 2, 3),
        completion=Completion((7,) * n, (-0.5,) * n, tuple(entropies), stopped=True),
        observation="#P_",
        message="State:\n#P_",
        anchor_key="s",
        state={"player": 1},
        response=response,
        thought=thought,
        thought_tokens=min(n, len(thought.split())),
        actions=() if fault else ("Up",),
        reached_keys=() if fault else ("s",),
        rewards={"env": reward, "format": -0.1 if fault else 0.0},
        thought_reward=0.0,
        format_fault=fault,
        thought_correct=thought_correct,
        thought_grounding=thought_grounding,
    )


def make_trajectory(
    turns: Sequence[Turn],
    *,
    seed: int = 0,
    group_id: int = 0,
    member: int = 0,
    success: bool = False,
    difficulty: str = "",
    stop_reason: StopReason = StopReason.MAX_TURNS,
) -> Trajectory:
    """Make a trajectory from its turns."""
    return Trajectory(
        group_id=group_id,
        member=member,
        seed=seed,
        env_name="double",
        difficulty=difficulty,
        turns=tuple(turns),
        initial_state={"seed": seed},
        start_key=str(seed),
        final_state={},
        stop_reason=stop_reason,
        success=success,
    )


def make_group(
    returns: Sequence[float],
    *,
    group_id: int = 0,
    seed: int | None = None,
    broken: Sequence[int] = (),
) -> TrajectoryGroup:
    """Make one-turn trajectories with these returns; those above 0 succeed.

    Args:
        broken: Members whose environment raised.
    """
    seed = 1000 + group_id if seed is None else seed
    members = tuple(
        make_trajectory(
            [make_turn(value)],
            seed=seed,
            group_id=group_id,
            member=n,
            success=value > 0 and n not in broken,
            stop_reason=StopReason.ENV_ERROR if n in broken else StopReason.TERMINATED,
        )
        for n, value in enumerate(returns)
    )
    return TrajectoryGroup(group_id, seed, members)


class TinyModule(LightningModule):
    """Fit one weight, so that a real trainer can run the callbacks."""

    phase = "rl"
    iteration = critic_only_iterations = 0

    def __init__(self, metrics: dict[str, float] | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.metrics = metrics or {}

    def on_train_epoch_start(self) -> None:
        clear_iteration_metrics(self.trainer)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        for name, value in self.metrics.items():
            self.log(name, value, on_step=False, on_epoch=True, batch_size=1)
        return self.weight.square()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TinyEvaluator:
    """Evaluate a ``TinyModule`` on made-up sets."""

    def __init__(self) -> None:
        self.evaluated: list[tuple[float, str, float]] = []

    def evaluation_set(self, eval_set: str) -> Any:
        return SimpleNamespace(fingerprint=f"10:{eval_set}")

    def evaluate(
        self, trainer: Trainer, eval_set: str, temperature: float
    ) -> list[TrajectoryGroup]:
        """Win the more, the more the weight was trained."""
        weight = float(cast(Any, trainer.lightning_module).weight.detach())
        self.evaluated.append((weight, eval_set, temperature))
        wins = 8 if weight < 0.7 else 4
        return [make_group([float(i < wins)], group_id=i) for i in range(10)]

    def evaluate_baseline(self, eval_set: str, baseline: Actor) -> list[TrajectoryGroup]:
        wins = {"random": 1, "expert": 9}[baseline.name]
        return [make_group([float(i < wins)], group_id=i) for i in range(10)]


class TinyData(LightningDataModule):
    """Collect made-up groups as the real data module does: lazily, calling the rollout hooks.

    Args:
        rollouts: Makes the groups of an iteration.
        warm_iterations: Iterations that imitate first.
    """

    def __init__(
        self, rollouts: Callable[[int], list[TrajectoryGroup]], warm_iterations: int = 0
    ) -> None:
        super().__init__()
        self.rollouts = rollouts
        self.warm_start = SimpleNamespace(iterations=warm_iterations, demonstrations=1000)
        self.rollout = SimpleNamespace(group_size=4, temperature=1.0)
        self.envs: dict[str, TextEnv] = {"": Bandit()}
        self.evaluation = SimpleNamespace(temperature=0.5)
        self.eval_sets = {"easy": Bandit(), "hard": Bandit()}
        self.evaluator = TinyEvaluator()
        self.starts = SimpleNamespace(chooses_starts=False)
        self.solutions: Solutions | None = None
        self.iteration = 0
        self.forgotten: list[int] = []
        """Iterations from which on solutions were to be forgotten."""

    def forget_since(self, iteration: int) -> None:
        self.forgotten.append(iteration)

    def train_dataloader(self) -> TinyData:
        return self

    def __iter__(self) -> Iterator[torch.Tensor]:
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module
        if is_done(self.iteration, self.trainer):
            for watcher in rollout_callbacks(self.trainer):
                watcher.on_already_finished(self.trainer, module)
            return
        iteration, self.iteration = self.iteration, self.iteration + 1
        module.phase = "rl" if iteration >= self.warm_start.iterations else "warm_start"
        if module.phase == "rl":
            groups = self.rollouts(iteration)
            watchers = list(rollout_callbacks(self.trainer))
            for watcher in watchers:
                watcher.begin_iteration(iteration)
                watcher.on_rollout_start(self.trainer, module, iteration, 16)
                watcher.on_rollout_progress(self.trainer, module, 7, 16)
            for watcher in watchers:
                watcher.on_collection_end(self.trainer, module, groups)
            for watcher in watchers:
                watcher.on_rollout_end(self.trainer, module, groups)
            if is_discarded(self.trainer):
                return
        yield torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.iteration = state_dict["iteration"]


def make_trainer(folder: Path, epochs: int, callbacks: Sequence[Callback], **more: Any) -> Trainer:
    """Make a quiet trainer that runs in a folder."""
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        callbacks=list(callbacks),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **{"enable_checkpointing": False, "enable_progress_bar": False, **more},
    )


def one_batch() -> DataLoader[Any]:
    """Make a loader of a single batch."""
    return DataLoader([torch.zeros(1)])  # type: ignore[arg-type]


class Diary(RolloutCallback):
    """Note the learner's state before each collection of the latest run."""

    states: ClassVar[dict[int, dict[str, Any]]] = {}
    cache_versions: ClassVar[dict[int, int]] = {}

    def on_rollout_start(self, trainer: Trainer, module: Any, iteration: int, *args: int) -> None:
        self.states[iteration] = take_snapshot(module, trainer.optimizers)
        self.cache_versions[iteration] = module.sampler.version


class Stop(RolloutCallback):
    """Stop as the Echo Trap's detector does, and note which weights are scored at the end.

    Args:
        at: Iteration, counted from 0.
    """

    scored: ClassVar[dict[str, torch.Tensor]] = {}

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def on_rollout_end(self, trainer: Trainer, module: Any, groups: Any) -> None:
        if self.iteration == self.at:
            self.reason, trainer.should_stop = "enough", True

    def on_evaluation_start(self, trainer: Trainer, module: Any, description: str) -> None:
        if description.startswith("final"):
            self.scored.update({k: v.clone() for k, v in module.state_dict().items()})


class Seeds(RolloutCallback):
    """Note the seeds of every collection."""

    played: ClassVar[list[int]] = []

    def on_collection_end(self, trainer: Trainer, module: Any, groups: Any) -> None:
        self.played.extend(group.seed for group in groups)
