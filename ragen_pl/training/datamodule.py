"""Regenerate the training data: one epoch is one collection under the current policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import lightning.pytorch as pl

from ragen_pl.distributed.batch_sharding import optimizer_batches
from ragen_pl.distributed.collectives import all_or_none, gather_objects, rank, world_size
from ragen_pl.envs import SHIPPED
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.check import check_contract, check_declared
from ragen_pl.envs.eval_seeds import eval_seeds, overlap
from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel
from ragen_pl.rollout import chat as chats
from ragen_pl.rollout.baselines import Baseline, play_baseline
from ragen_pl.rollout.chat import Chat, Prompts
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart, demonstrate, demonstration_batches
from ragen_pl.rollout.packing import num_updates
from ragen_pl.rollout.rewards import check_thought_penalty
from ragen_pl.rollout.stats import check_room
from ragen_pl.training.callback import RolloutCallback, is_discarded, is_done, rollout_callbacks
from ragen_pl.training.collection import (
    FIRST_DEMONSTRATION,
    SEEDS_PER_RUN,
    Collector,
    DynamicSampling,
    SeedStream,
    collect_enough,
    group_seeds,
)
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

_EVALUATION = 1 << 40
"""Iteration number under which evaluations sample, so that their noise meets no training noise."""
_TRAINING_STARTS = 256
"""How many of a run's starts its evaluation sets' are compared with."""


class SpeakingLearner(Learner, Protocol):
    """A learner that brings its tokenizer."""

    language: LanguageModel


@dataclass(frozen=True)
class EvaluationConfig:
    """Size the evaluations on evaluation sets.

    Args:
        size: Starts per evaluation set, distinct where the environment has that many.
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
    """Collect trajectories for training and play the evaluation evaluation sets.

    Args:
        env: The environment to train in.
        eval_sets: Environments to evaluate in, by name; the first is the default evaluation set.
        prompts: How the dialogue is worded.
        rollout: How much is collected.
        warm_start: Imitation before RL.
        evaluation: How evaluation sets are played.
        dynamic_sampling: Whether and how to collect again when too few groups carry signal; null
            collects once.
        run_seed: Decides every start and every draw.
    """

    def __init__(
        self,
        env: TextEnv,
        eval_sets: dict[str, TextEnv],
        prompts: Prompts = Prompts(),  # noqa: B008  frozen, so sharing it is safe
        rollout: RolloutConfig = RolloutConfig(),  # noqa: B008
        warm_start: WarmStart = WarmStart(),  # noqa: B008
        evaluation: EvaluationConfig = EvaluationConfig(),
        dynamic_sampling: DynamicSampling | None = None,
        run_seed: int = 0,
    ) -> None:
        super().__init__()
        if dynamic_sampling is not None:
            dynamic_sampling.check(rollout.group_size)
        envs = {
            "env": env,
            **{f"evaluation sets.{name}": eval_set for name, eval_set in eval_sets.items()},
        }
        for key, each in envs.items():
            check_declared(each, f"data.{key}")
        chats.check_actions(envs)
        for key, each in envs.items():
            check_contract(each, f"data.{key}")
        check_thought_penalty(rollout.thought_penalty, env, think=prompts.think)
        if warm_start.iterations and type(env).expert_turn is TextEnv.expert_turn:
            raise ValueError(
                f"data.warm_start.iterations is {warm_start.iterations}, but {type(env).__name__} "
                "has no expert_turn to imitate: write one, or set it to 0"
            )
        if not eval_sets:
            raise ValueError(
                "data.eval_sets is empty; name at least one evaluation set to evaluate on"
            )
        self.env, self.eval_sets, self.prompts = env, eval_sets, prompts
        self.rollout, self.warm_start, self.evaluation = rollout, warm_start, evaluation
        self.dynamic_sampling, self.run_seed = dynamic_sampling, run_seed
        self._stream = SeedStream()
        self._chat: Chat | None = None
        self._demonstrations: RolloutBatch | None = None
        self._panel_seeds: dict[str, list[int]] = {}

    def vocabulary(self) -> Iterable[str]:
        """List this run's words, and what frames the dialogues of every shipped environment; the
        maps of environments that this run does not play are left to be spelled out."""
        actions = self.max_actions_per_turn
        for think in (True, False):
            prompts = replace(self.prompts, think=think)
            for env in (self.env, *self.eval_sets.values()):
                yield from chats.vocabulary(prompts, env, actions)
            for env in (kind() for kind in SHIPPED):
                yield from chats.common_vocabulary(prompts, env, actions)

    @property
    def max_actions_per_turn(self) -> int:
        """What a response may hold; an agent is promised no more than its environment takes."""
        return min(self.rollout.max_actions_per_turn, self.env.max_actions)

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
            try:
                language.check_context(self.rollout.max_context)
                self._chat = Chat(
                    self.prompts,
                    language.tokenizer,
                    language.markers,
                    self.max_actions_per_turn,
                )
            except ValueError as error:
                raise ConfigError(str(error)) from error
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
        if is_done(iteration, self.fitter):  # Lightning asks for a batch before it looks
            for watcher in self._watchers():
                watcher.on_nothing_left(self.fitter, self.fitter.lightning_module)
            return
        if iteration < self.warm_start.iterations:
            learner.begin_iteration(Phase.WARM_START)
            yield from demonstration_batches(
                self.demonstrations, self.warm_start, iteration=iteration, seed=self.run_seed
            )
            return
        learner.begin_iteration(Phase.RL)
        collector = Collector(self.fitter, self.env, self.chat, self.rollout, learner.generate)
        with learner.rollout_weights(self.rollout.max_context):
            collected = collect_enough(
                lambda group_seeds: collector.play(group_seeds, iteration),
                lambda nth: self.group_seeds(iteration, nth),
                self.dynamic_sampling,
            )
        weights = collector.select(collected)
        if is_discarded(self.fitter):
            return  # a detector saw a collapse: no further step on this data
        rollout = collector.packed(collected, weights)
        batch = learner.build_training_batch(rollout, on_policy=self.rollout.is_on_policy)
        parts = optimizer_batches(batch, self._num_updates(weights))
        for _ in range(self.rollout.ppo_epochs):
            yield from parts

    def group_seeds(self, iteration: int, collection: int) -> list[GroupSeed]:
        """List all ranks' starts of the n-th collection of an iteration of RL."""
        place = self._stream.place(iteration - self.warm_start.iterations, self._num_starts)
        return group_seeds(self.run_seed, place, self._num_starts, collection)

    @property
    def _num_starts(self) -> int:
        """Of one collection."""
        return self.rollout.num_groups * self.rollout.online_k

    def state_dict(self) -> dict[str, Any]:
        """Save which starts are taken."""
        since = max(0, self.module.iteration - self.warm_start.iterations)
        return {"stream": self._stream.state_dict(since, self._num_starts)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take further ones, however many a collection takes now."""
        self._stream.load_state_dict(state_dict["stream"])

    def _num_updates(self, weights: Sequence[Sequence[float]]) -> int:
        """Count the optimizer batches to make of what was kept on all ranks."""
        if not self.rollout.scale_updates:
            return self.rollout.online_k
        flat = [weight > 0 for row in weights for weight in row]
        counts = gather_objects((sum(flat), len(flat)))
        kept, collected = (sum(column) for column in zip(*counts, strict=True))
        return num_updates(kept, collected, self.rollout.online_k)

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
                first_seed=self.run_seed * SEEDS_PER_RUN + FIRST_DEMONSTRATION,
            )
        return self._demonstrations

    def eval_seeds_of(self, eval_set: str) -> list[int]:
        """Return an evaluation set's fixed starts; every rank must call it.

        Raises:
            ConfigError: on all ranks, when the environment gives none.
        """
        if eval_set not in self._panel_seeds:
            env, size = self.eval_sets[eval_set], self.evaluation.size
            try:
                own = all_or_none(lambda: eval_seeds(env, size))
            except ValueError as error:
                raise ConfigError(f"data.eval_sets.{eval_set}: {error}") from error
            # A reset that fails now and then may have passed over other seeds elsewhere.
            self._panel_seeds[eval_set] = gather_objects(own)[0]
        return self._panel_seeds[eval_set]

    def setup(self, stage: str) -> None:
        """Say at the start of a run which evaluation sets hold starts that it trains on."""
        if stage != "fit":
            return
        seeds = {name: self.eval_seeds_of(name) for name in self.eval_sets}
        if rank() != 0:
            return
        first = self.run_seed * SEEDS_PER_RUN
        training = range(first, first + _TRAINING_STARTS)
        for name, eval_set in self.eval_sets.items():
            if eval_set.name != self.env.name:
                print(
                    f"data.eval_sets.{name} is {type(eval_set).__name__}, but data.env is "
                    f"{type(self.env).__name__}: it scores another task than is trained"
                )
            met = overlap(eval_set, seeds[name], self.env, training)
            if met.shared:
                print(
                    f"data.eval_sets.{name}: {met.shared} of its {met.starts} starts are among the "
                    f"run's first {_TRAINING_STARTS} training starts: on these it measures what "
                    "was learned, not what carries over to others"
                )

    def evaluate(
        self, learner: Learner, eval_set: str, temperature: float
    ) -> list[TrajectoryGroup]:
        """Play every start of an evaluation set once; this rank's share.

        Raises:
            ConfigError: on all ranks, when no start has room for an answer on any.
        """
        number = list(self.eval_sets).index(eval_set)
        trainer, watchers = self.fitter, self._watchers()

        def progress(finished: int, total: int) -> None:
            for watcher in watchers:
                watcher.on_evaluation_progress(trainer, trainer.lightning_module, finished, total)

        group_seeds = [
            GroupSeed(place, seed) for place, seed in enumerate(self.eval_seeds_of(eval_set))
        ]
        with learner.rollout_weights(self.rollout.max_context):
            groups = collect(
                self.eval_sets[eval_set],
                group_seeds[rank() :: world_size()],
                self.chat,
                learner.generate,
                replace(self.rollout, group_size=1),
                iteration=_EVALUATION + number * 1000 + round(temperature * 100),
                sampling=Sampling(temperature, self.rollout.max_response_tokens),
                progress=progress,
            )
        check_room(groups)
        return groups

    def evaluate_baseline(self, eval_set: str, baseline: Baseline) -> list[TrajectoryGroup]:
        """Play every start of an evaluation set once without the learner."""
        env, seeds, config = self.eval_sets[eval_set], self.eval_seeds_of(eval_set), self.rollout
        return [play_baseline(env, s, place, config, baseline) for place, s in enumerate(seeds)]

    def val_dataloader(self) -> list[EvaluationLoader]:
        """Return one loader per evaluation set; each plays its evaluation set when iterated."""
        return [EvaluationLoader(self, eval_set) for eval_set in self.eval_sets]

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
    """Play one evaluation set, as one batch."""

    def __init__(self, data: RolloutDataModule, eval_set: str) -> None:
        self.data, self.eval_set = data, eval_set

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Evaluation]:
        temperature = self.data.evaluation.temperature
        groups = self.data.evaluate(self.data.module, self.eval_set, temperature)
        yield Evaluation(self.eval_set, temperature, tuple(groups))
