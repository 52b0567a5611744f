"""The data module: one Lightning epoch is one collection under the current policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import lightning.pytorch as pl

from ragen_pl.distributed.batch_sharding import optimizer_batches
from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.envs import SHIPPED
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.check import check_contract, check_declared
from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel
from ragen_pl.rollout import chat as chats
from ragen_pl.rollout.actors import Actor
from ragen_pl.rollout.baselines import play_baseline
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
from ragen_pl.training.evaluation_sets import EvaluationConfig, EvaluationSet
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

_TRAINING_STARTS = 256
"""How many of a run's starts its evaluation sets' are compared with."""


class LearnerWithTokenizer(Learner, Protocol):
    """A learner that brings its tokenizer and chat markers."""

    language: LanguageModel


class RolloutDataModule(pl.LightningDataModule):
    """Collections of trajectories to train on, and evaluations.

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
        evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008
        dynamic_sampling: DynamicSampling | None = None,
        run_seed: int = 0,
    ) -> None:
        super().__init__()
        if dynamic_sampling is not None:
            dynamic_sampling.check(rollout.group_size)
        envs = {
            "env": env,
            **{f"eval_sets.{name}": eval_set for name, eval_set in eval_sets.items()},
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
        self._evaluation_sets: dict[str, EvaluationSet] = {}

    def vocabulary(self) -> Iterable[str]:
        """List this run's words, and what frames the dialogues of every shipped environment; maps
        of environments that this run does not play are spelled out in smaller tokens."""
        actions = self.max_actions_per_turn
        for think in (True, False):
            prompts = replace(self.prompts, think=think)
            for env in (self.env, *self.eval_sets.values()):
                yield from chats.vocabulary(prompts, env, actions)
            for env in (kind() for kind in SHIPPED):
                yield from chats.common_vocabulary(prompts, env, actions)

    @property
    def max_actions_per_turn(self) -> int:
        """Actions one response may hold: no more than the environment takes in an episode."""
        return min(self.rollout.max_actions_per_turn, self.env.max_actions)

    @property
    def fitter(self) -> pl.Trainer:
        """The trainer this module is attached to."""
        assert self.trainer is not None
        return self.trainer

    @property
    def module(self) -> LearnerWithTokenizer:
        """The learner to collect for: the one line that points backwards."""
        return cast(LearnerWithTokenizer, self.fitter.lightning_module)

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

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Return an evaluation set with its fixed starts; every rank must call it.

        Raises:
            ConfigError: on all ranks, when the environment gives none.
        """
        if name not in self._evaluation_sets:
            index = list(self.eval_sets).index(name)
            self._evaluation_sets[name] = EvaluationSet.build(
                name, self.eval_sets[name], index, self.evaluation.size
            )
        return self._evaluation_sets[name]

    def setup(self, stage: str) -> None:
        """Print at the start of a run which evaluation sets hold starts that it trains on."""
        if stage != "fit":
            return
        chosen = [self.evaluation_set(name) for name in self.eval_sets]
        first = self.run_seed * SEEDS_PER_RUN
        training_seeds = range(first, first + _TRAINING_STARTS)
        for each in chosen if rank() == 0 else ():
            for remark in each.remarks(self.env, training_seeds):
                print(remark)

    def evaluate(
        self, learner: Learner, eval_set: str, temperature: float
    ) -> list[TrajectoryGroup]:
        """Play every start of an evaluation set once; this rank's share.

        Raises:
            ConfigError: on all ranks, when no start has room for an answer on any.
        """
        chosen, trainer, watchers = self.evaluation_set(eval_set), self.fitter, self._watchers()

        def progress(finished: int, total: int) -> None:
            for watcher in watchers:
                watcher.on_evaluation_progress(trainer, trainer.lightning_module, finished, total)

        with learner.rollout_weights(self.rollout.max_context):
            groups = collect(
                chosen.env,
                chosen.group_seeds[rank() :: world_size()],
                self.chat,
                learner.generate,
                replace(self.rollout, group_size=1),
                iteration=chosen.noise_iteration(temperature),
                sampling=Sampling(temperature, self.rollout.max_response_tokens),
                progress=progress,
            )
        check_room(groups)
        return groups

    def evaluate_baseline(self, eval_set: str, baseline: Actor) -> list[TrajectoryGroup]:
        """Play every start of an evaluation set once without the learner."""
        chosen = self.evaluation_set(eval_set)
        return [
            play_baseline(chosen.env, seed, place, self.rollout, baseline)
            for place, seed in enumerate(chosen.seeds)
        ]

    def val_dataloader(self) -> list[EvaluationLoader]:
        """Return one loader per evaluation set; each plays its evaluation set when iterated."""
        return [EvaluationLoader(self, eval_set) for eval_set in self.eval_sets]

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


class IterationLoader:
    """The loader of a whole fit: one collection each time it is iterated over. It has no length,
    since Lightning would act on one."""

    def __init__(self, data: RolloutDataModule) -> None:
        self.data = data

    def __iter__(self) -> Iterator[TrainingBatch | Demonstration]:
        return self.data.iterate()


class EvaluationLoader:
    """One evaluation set, played as one batch."""

    def __init__(self, data: RolloutDataModule, eval_set: str) -> None:
        self.data, self.eval_set = data, eval_set

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Evaluation]:
        temperature = self.data.evaluation.temperature
        groups = self.data.evaluate(self.data.module, self.eval_set, temperature)
        yield Evaluation(self.eval_set, temperature, tuple(groups))
