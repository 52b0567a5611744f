"""Regenerate the training data: one epoch is one collection under the current policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import lightning.pytorch as pl

from ragen_pl import chat as chats
from ragen_pl.chat import Chat, Prompts
from ragen_pl.distributed import rank, world_size
from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.frozen_lake import FrozenLake
from ragen_pl.envs.panel import panel_seeds
from ragen_pl.envs.sokoban import Sokoban
from ragen_pl.hooks import RolloutCallback, rollout_callbacks
from ragen_pl.models.embedded import LanguageModel
from ragen_pl.packing import pack, split
from ragen_pl.random_policy import play_randomly
from ragen_pl.rollout import RolloutConfig, Start, collect
from ragen_pl.types import (
    Demonstration,
    Evaluation,
    Learner,
    Phase,
    RolloutBatch,
    Sampling,
    TrainingBatch,
    TrajectoryGroup,
)
from ragen_pl.warm_start import WarmStart, demonstrate, demonstration_batches

_EVALUATION = 1 << 40
"""Iteration number under which evaluations sample, so that their noise meets no training noise."""
_SEEDS_PER_RUN = 1 << 32
_FIRST_DEMONSTRATION = 1 << 31
"""Place of the demonstrations in a run's stream of seeds, beyond what RL can reach."""


class SpeakingLearner(Learner, Protocol):
    """A learner that brings its tokenizer."""

    language: LanguageModel


@dataclass(frozen=True)
class EvaluationConfig:
    """Size the evaluations on panels.

    Args:
        size: Starts per panel, distinct where the environment has that many.
        temperature: Of the sampling; the paper evaluates at 0.5, and 0 is greedy.
    """

    size: int = 256
    temperature: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"evaluation.size is {self.size}; it must be at least 1")
        if self.temperature < 0:
            given = self.temperature
            raise ValueError(f"evaluation.temperature is {given}; it must be 0 (greedy) or more")


class RolloutDataModule(pl.LightningDataModule):
    """Collect trajectories for training and play the evaluation panels.

    Args:
        env: The environment to train in.
        panels: Environments to evaluate in, by name; the first is the default panel.
        prompts: How the dialogue is worded.
        rollout: How much is collected.
        warm_start: Imitation before RL.
        evaluation: How panels are played.
        run_seed: Decides every start and every draw.
    """

    def __init__(
        self,
        env: TextEnv,
        panels: dict[str, TextEnv],
        prompts: Prompts = Prompts(),  # noqa: B008  frozen, so sharing it is safe
        rollout: RolloutConfig = RolloutConfig(),  # noqa: B008
        warm_start: WarmStart = WarmStart(),  # noqa: B008
        evaluation: EvaluationConfig = EvaluationConfig(),
        run_seed: int = 0,
    ) -> None:
        super().__init__()
        chats.check_actions(
            {"env": env, **{f"panels.{name}": panel for name, panel in panels.items()}}
        )
        if not panels:
            raise ValueError("data.panels is empty; name at least one panel to evaluate on")
        self.env, self.panels, self.prompts = env, panels, prompts
        self.rollout, self.warm_start, self.evaluation = rollout, warm_start, evaluation
        self.run_seed = run_seed
        self._chat: Chat | None = None
        self._demonstrations: RolloutBatch | None = None
        self._panel_seeds: dict[str, list[int]] = {}

    def vocabulary(self) -> Iterable[str]:
        """List this run's words, and what frames the dialogues of every shipped environment; the
        maps of environments that this run does not play are left to be spelled out."""
        actions = self.rollout.max_actions_per_turn
        for think in (True, False):
            prompts = replace(self.prompts, think=think)
            for env in (self.env, *self.panels.values()):
                yield from chats.vocabulary(prompts, env, actions)
            for env in (Sokoban(), FrozenLake(), Bandit()):
                yield from chats.common_vocabulary(prompts, env, actions)

    @property
    def fitter(self) -> pl.Trainer:
        """The trainer this module is attached to."""
        assert self.trainer is not None
        return self.trainer

    @property
    def module(self) -> SpeakingLearner:
        """The one line that points backwards: the learner to collect for."""
        return cast(SpeakingLearner, self.fitter.lightning_module)

    @property
    def chat(self) -> Chat:
        if self._chat is None:
            language = self.module.language
            self._chat = Chat(
                self.prompts,
                language.tokenizer,
                language.markers,
                self.rollout.max_actions_per_turn,
            )
        return self._chat

    def train_dataloader(self) -> Iterable[TrainingBatch | Demonstration]:
        """Return the one lazy loader of the run; its iteration is a collection."""
        return IterationLoader(self)

    def iterate(self) -> Iterator[TrainingBatch | Demonstration]:
        """Yield the optimizer batches of the learner's next iteration.

        All work that needs the learner is done before the first batch: the trainer fetches one
        batch ahead.
        """
        learner, iteration = self.module, self.module.iteration
        if iteration < self.warm_start.iterations:
            learner.begin_iteration(Phase.WARM_START)
            yield from demonstration_batches(
                self.demonstrations, self.warm_start, iteration=iteration, seed=self.run_seed
            )
            return
        learner.begin_iteration(Phase.RL)
        groups = self.collect_training(iteration)
        weights = self._select(groups)
        if self.fitter.should_stop or any(watcher.discard for watcher in self._watchers()):
            return  # a detector saw a collapse: no further step on this data
        survivors = [
            (trajectory, weight)
            for group, row in zip(groups, weights, strict=True)
            for trajectory, weight in zip(group.trajectories, row, strict=True)
            if trajectory.survived
        ]
        if not survivors:
            raise RuntimeError(
                f"every trajectory of iteration {iteration} ended in an error of the environment "
                f"{self.env.name!r}; the warnings above say which: there is nothing to learn from"
            )
        rollout = pack([t for t, _ in survivors], weights=[w for _, w in survivors])
        parts = split(learner.annotate(rollout), self.rollout.online_k)
        for _ in range(self.rollout.epochs):
            yield from parts

    def collect_training(self, iteration: int) -> list[TrajectoryGroup]:
        """Collect this rank's share of the iteration's groups, on fresh starts."""
        config = self.rollout
        total = config.num_groups * config.online_k
        first = (iteration - self.warm_start.iterations) * total
        base = self.run_seed * _SEEDS_PER_RUN
        starts = [
            Start(group_id, base + first + group_id)
            for group_id in range(rank(), total, world_size())
        ]
        size = len(starts) * config.group_size
        trainer, watchers = self.fitter, self._watchers()
        for watcher in watchers:
            watcher.on_rollout_start(trainer, trainer.lightning_module, iteration, size)

        def progress(finished: int, count: int) -> None:
            for watcher in watchers:
                watcher.on_rollout_progress(trainer, trainer.lightning_module, finished, count)

        sampling = Sampling(config.temperature, config.max_response_tokens)
        return collect(
            self.env,
            starts,
            self.chat,
            self.module.generate,
            config,
            iteration=iteration,
            sampling=sampling,
            progress=progress,
        )

    def _select(self, groups: Sequence[TrajectoryGroup]) -> list[list[float]]:
        """Ask the callbacks how to weigh the trajectories; their weights multiply."""
        trainer = self.fitter
        weights = [[1.0] * len(group.trajectories) for group in groups]
        for watcher in self._watchers():
            selection = watcher.on_rollout_end(trainer, trainer.lightning_module, list(groups))
            if selection is not None:
                weights = [
                    [a * b for a, b in zip(old, new, strict=True)]
                    for old, new in zip(weights, selection.weights, strict=True)
                ]
        return weights

    def _watchers(self) -> list[RolloutCallback]:
        return list(rollout_callbacks(self.fitter))

    @property
    def demonstrations(self) -> RolloutBatch:
        """The fixed set, played once and kept."""
        if self._demonstrations is None:
            self._demonstrations = demonstrate(
                self.env,
                self.chat,
                self.rollout,
                self.warm_start,
                first_seed=self.run_seed * _SEEDS_PER_RUN + _FIRST_DEMONSTRATION,
            )
        return self._demonstrations

    def seeds_of(self, panel: str) -> list[int]:
        """Return a panel's fixed starts."""
        if panel not in self._panel_seeds:
            self._panel_seeds[panel] = panel_seeds(self.panels[panel], self.evaluation.size)
        return self._panel_seeds[panel]

    def evaluate(self, learner: Learner, panel: str, temperature: float) -> list[TrajectoryGroup]:
        """Play every start of a panel once; this rank's share."""
        number = list(self.panels).index(panel)
        trainer, watchers = self.fitter, self._watchers()

        def progress(finished: int, total: int) -> None:
            for watcher in watchers:
                watcher.on_evaluation_progress(trainer, trainer.lightning_module, finished, total)

        starts = [Start(place, seed) for place, seed in enumerate(self.seeds_of(panel))]
        return collect(
            self.panels[panel],
            starts[rank() :: world_size()],
            self.chat,
            learner.generate,
            replace(self.rollout, group_size=1),
            iteration=_EVALUATION + number * 1000 + round(temperature * 100),
            sampling=Sampling(temperature, self.rollout.max_response_tokens),
            progress=progress,
        )

    def evaluate_random(self, panel: str) -> list[TrajectoryGroup]:
        """Play every start of a panel once with uniformly random actions."""
        env, seeds = self.panels[panel], self.seeds_of(panel)
        return [play_randomly(env, seed, at, self.rollout) for at, seed in enumerate(seeds)]

    def val_dataloader(self) -> list[EvaluationLoader]:
        """Return one loader per panel; each plays its panel when iterated."""
        return [EvaluationLoader(self, panel) for panel in self.panels]

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


class IterationLoader:
    """Be the loader of a whole fit: no length, which Lightning would act on; one collection each
    time it is iterated over."""

    def __init__(self, data: RolloutDataModule) -> None:
        self.data = data

    def __iter__(self) -> Iterator[TrainingBatch | Demonstration]:
        return self.data.iterate()


class EvaluationLoader:
    """Play one panel, as one batch."""

    def __init__(self, data: RolloutDataModule, panel: str) -> None:
        self.data, self.panel = data, panel

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Evaluation]:
        temperature = self.data.evaluation.temperature
        groups = self.data.evaluate(self.data.module, self.panel, temperature)
        yield Evaluation(self.panel, temperature, tuple(groups))
