"""The data module: one Lightning epoch is one rollout of the current policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.distributed.batch_sharding import optimizer_batches
from ragen_pl.distributed.collectives import all_or_none, gather_objects, rank, world_size
from ragen_pl.envs import COVERED
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.check import check_contract, check_declared
from ragen_pl.envs.fingerprint import code_fingerprint
from ragen_pl.envs.workers import EnvHost
from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.endpoint import EndpointClient
from ragen_pl.rollout import chat as chats
from ragen_pl.rollout.actors import Actor
from ragen_pl.rollout.baselines import play_baseline
from ragen_pl.rollout.chat import Chat, Dialogue, Prompts
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.conversation import converse
from ragen_pl.rollout.curriculum import Curriculum, Uniform, choose_starts
from ragen_pl.rollout.demonstrations import (
    WarmStart,
    demonstrate,
    demonstration_batches,
    packed,
    right_answers,
)
from ragen_pl.rollout.hindsight import HindsightImitation, Solution, SolutionWriter
from ragen_pl.rollout.mixture import Mixture, MixtureConfig, env_of_set, groups_by_env
from ragen_pl.rollout.packing import num_updates
from ragen_pl.rollout.seeds import FIRST_DEMONSTRATION, SEEDS_PER_RUN, SeedStream, group_seeds
from ragen_pl.rollout.self_distillation import (
    HintedTrajectory,
    HintWriter,
    SelfDistillation,
    hinted_lessons,
)
from ragen_pl.rollout.solution_memory import SolutionMemory
from ragen_pl.rollout.stats import (
    Tallies,
    Tally,
    check_room,
    lost_rollout,
    sum_tallies,
)
from ragen_pl.rollout.teachers import Lesson, Question, TeachingTask
from ragen_pl.runtime.faults import FaultKind, record_shared_fault
from ragen_pl.training.callback import announce, is_discarded, is_done, rollout_callbacks
from ragen_pl.training.collection import Collector, DynamicSampling, collect_groups
from ragen_pl.training.distillation import HintedRollout
from ragen_pl.training.evaluation_sets import EvaluationConfig, EvaluationSet
from ragen_pl.types import (
    Completion,
    Demonstration,
    DemonstrationSet,
    Evaluation,
    HindsightBatch,
    Phase,
    Request,
    RolloutBatch,
    Sampling,
    TrainingBatch,
    TrajectoryGroup,
)

IterationBatch = TrainingBatch | Demonstration | HindsightBatch
"""A batch of one optimizer step."""
_COMPARED_TRAINING_SEEDS = 256
"""Number of training seeds, the run's first ones, that are compared with its evaluation sets."""
_TRIED_FOR_DIFFICULTIES = 64
"""Number of training seeds, the run's first ones, of which two must differ in difficulty before a
curriculum chooses by it."""

_MOST_LOST = 3
"""Rollouts in a row without a single sound trajectory after which a run ends."""


class Learner(Protocol):
    """Interface of the module that the data module collects for."""

    iteration: int
    language: LanguageModel
    endpoint: EndpointClient | None
    """The connection to a policy that is behind an endpoint; None for one with weights here."""

    def begin_iteration(self, phase: Phase) -> None:
        """Prepare for an iteration; called before its first batch."""

    def rollout_weights(self, max_context: int) -> AbstractContextManager[None]:
        """Return a context for generating rows of at most ``max_context`` tokens.

        Every rank must enter and leave it, even if it generates nothing.
        """

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Sample with the current weights; see ``ragen_pl.types.Generate``."""

    def build_training_batch(self, rollout: RolloutBatch, *, on_policy: bool) -> TrainingBatch:
        """Add the learner's estimates; ``on_policy`` if the rollout is used for a single update."""

    def distill(
        self, batch: TrainingBatch, hinted: HintedRollout, config: SelfDistillation
    ) -> TrainingBatch:
        """Add the advantages of self-distillation; every rank must call it."""


class RolloutDataModule(pl.LightningDataModule):
    """Rollouts to train on, demonstrations for the warm start, and evaluations.

    Args:
        env: The environment to train in; null if there is a mixture.
        eval_sets: Environments to evaluate in, by name; the first is the default evaluation set.
            Configurations are merged by name, and null leaves a set out. In a mixture, a set
            belongs to the environment with whose name its own begins.
        prompts: Wording and format of the dialogue.
        rollout: Size and limits of a rollout.
        warm_start: Imitation before RL.
        evaluation: Size, sampling and identity of evaluations.
        hindsight: Imitation of the policy's own solutions beside RL; null for none.
        distillation: Self-distillation by hints, as a further advantage; null for none.
        dynamic_sampling: Further collections when too few groups have signal; null collects once.
        curriculum: Choice of the starts to collect, by difficulty and success so far.
        envs: A mixture of environments to train in, by name, in place of ``env``. Configurations
            are merged by name, and null leaves an environment out.
        mixture: Shares of the environments of a mixture, and what each has of its own.
        run_seed: Seed of all initial states and of the environments' noise.
    """

    def __init__(  # noqa: PLR0913 (one argument per key)
        self,
        env: TextEnv | None = None,
        eval_sets: Mapping[str, TextEnv | None] = MappingProxyType({}),
        prompts: Prompts = Prompts(),  # noqa: B008  frozen, so sharing it is safe
        rollout: RolloutConfig = RolloutConfig(),  # noqa: B008
        warm_start: WarmStart = WarmStart(),  # noqa: B008
        hindsight: HindsightImitation | None = None,
        distillation: SelfDistillation | None = None,
        evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008
        dynamic_sampling: DynamicSampling | None = None,
        curriculum: Curriculum = Uniform(),  # noqa: B008
        envs: Mapping[str, TextEnv | None] = MappingProxyType({}),
        mixture: MixtureConfig = MixtureConfig(),  # noqa: B008
        run_seed: int = 0,
    ) -> None:
        super().__init__()
        self.envs = _training_envs(env, envs)
        if dynamic_sampling is not None:
            dynamic_sampling.check(rollout.group_size)
        evaluation.check_pins(eval_sets)
        evaluated = {name: each for name, each in eval_sets.items() if each is not None}
        self.mixture = self._mixture(mixture, curriculum, run_seed)
        keys = {_key_of(name): each for name, each in self.envs.items()}
        keys |= {f"eval_sets.{name}": each for name, each in evaluated.items()}
        for key, each in keys.items():
            check_declared(each, f"data.{key}")
        chats.check_actions(keys)
        for key, each in keys.items():
            self.check_env(each, f"data.{key}")
        chats.check_tools(prompts, keys)
        for name, term in rollout.reward_terms.items():
            check_term = partial(
                term.check,
                f"data.rollout.rewards.{name}",
                think=prompts.think,
                max_response_tokens=rollout.max_response_tokens,
            )
            _accepting(check_term, self.envs)
        self._taught = _taught(warm_start, self.envs, think=prompts.think)
        if self.mixture is not None:
            self.mixture.check_difficulties("data.warm_start", warm_start.difficulties)
        if not evaluated:
            raise ValueError(
                "data.eval_sets is empty; name at least one evaluation set to evaluate on"
            )
        first_seed = run_seed * SEEDS_PER_RUN
        curricula = {"": curriculum} if self.mixture is None else self.mixture.curricula
        for name, chooser in curricula.items():
            tried = range(first_seed, first_seed + _TRIED_FOR_DIFFICULTIES)
            chooser.check(self.envs[name], tried)
        self.eval_sets, self.prompts = evaluated, prompts
        self.rollout, self.warm_start, self.evaluation = rollout, warm_start, evaluation
        self.dynamic_sampling, self.run_seed = dynamic_sampling, run_seed
        self.hindsight, self._memory = hindsight, None
        self._hindsight_of: dict[str, HindsightImitation] = {}
        if hindsight is not None:
            check = partial(hindsight.check, rollout=rollout, think=prompts.think)
            _accepting(check, self.envs)
            self._hindsight_of = {
                name: hindsight
                if self.mixture is None
                else hindsight.fitted(each, think=prompts.think)
                for name, each in self.envs.items()
            }
            self._memory = SolutionMemory(hindsight, run_seed)
        self.distillation = distillation
        if distillation is not None:
            if hindsight is not None and hindsight.alone:
                raise ValueError(
                    "data.distillation is set, but hindsight.alone leaves RL out, whose advantages "
                    "it adds to: set one of them back"
                )
            check_hints = partial(
                distillation.check,
                rollout=rollout,
                tools=prompts.tools,
                warm=warm_start.iterations > 0,
            )
            self._hinted = _accepting(check_hints, self.envs)
        self.curriculum = curriculum
        self._progress: Tallies = {}
        self._seeds = SeedStream()
        self._chats: dict[int, Chat] = {}
        self._demonstrations: DemonstrationSet | None = None
        self._questions: tuple[Question, ...] = ()
        self._evaluation_sets: dict[str, EvaluationSet] = {}
        self._host: EnvHost | None = None
        self._lost_in_a_row = _MOST_LOST - 1  # an environment that never worked is told at once

    def _mixture(
        self, config: MixtureConfig, curriculum: Curriculum, run_seed: int
    ) -> Mixture | None:
        """Return the mixture; None with a single environment.

        Raises:
            ValueError: for keys of a mixture without one, and for names that it does not have.
        """
        if "" not in self.envs:
            config.check_names(self.envs)
            return Mixture(self.envs, config, curriculum, run_seed)
        if config != MixtureConfig():
            raise ValueError(
                "data.mixture is set, but data.envs is empty: name the environments of the mixture "
                "there, or leave data.mixture out"
            )
        return None

    @property
    def env(self) -> TextEnv:
        """The training environment; in a mixture, the first one."""
        return next(iter(self.envs.values()))

    def check_env(self, env: TextEnv, key: str) -> None:
        """Check an environment by its contract, before anything else is done with it.

        Raises:
            ValueError: if it breaks the contract.
        """
        check_contract(env, key)

    def vocabulary(self) -> Iterable[str]:
        """Yield the texts of this run's environments, and the common texts of those in ``COVERED``.

        The common texts have no board symbols: those of environments that the run does not use are
        split into smaller tokens.
        """
        actions = max(map(self.actions_per_turn_in, self.envs))
        for think in (True, False):
            prompts = replace(self.prompts, think=think)
            for name, env in self.envs.items():
                yield from chats.vocabulary(prompts, env, self.actions_per_turn_in(name))
            for name, env in self.eval_sets.items():
                yield from chats.vocabulary(prompts, env, self.actions_per_turn_on(name))
            for env in (kind() for kind in COVERED):
                yield from chats.common_vocabulary(prompts, env, actions)
        yield from self.rollout.memory.vocabulary()
        yield from self.warm_start.teacher.vocabulary()
        if self.distillation is not None:
            yield from self.distillation.vocabulary()

    def words_on(self, eval_set: str) -> Iterable[str]:
        """Yield the pieces of text of an evaluation set, as ``vocabulary``."""
        actions = self.actions_per_turn_on(eval_set)
        yield from chats.vocabulary(self.prompts, self.eval_sets[eval_set], actions)

    def code_fingerprints(self) -> dict[str, str]:
        """Return fingerprints of the environments' code, by key."""
        envs = {f"data.{_key_of(name)}": env for name, env in self.envs.items()}
        envs |= {f"data.eval_sets.{name}": env for name, env in self.eval_sets.items()}
        return {key: code_fingerprint(env) for key, env in envs.items()}

    @property
    def max_actions_per_turn(self) -> int:
        """Maximum actions in one response, limited by the environment's maximum per episode; in a
        mixture, its first environment's."""
        return self.actions_per_turn_in(next(iter(self.envs)))

    def actions_per_turn_in(self, name: str) -> int:
        """Return the maximum actions in one response in a training environment."""
        return min(self.rollout.max_actions_per_turn, self.envs[name].max_actions)

    @property
    def attached_trainer(self) -> pl.Trainer:
        """The trainer that runs this data module."""
        assert self.trainer is not None
        return self.trainer

    @property
    def learner(self) -> Learner:
        """The trainer's module; the data module has no other reference to the learner."""
        return cast(Learner, self.attached_trainer.lightning_module)

    @property
    def chat(self) -> Chat:
        """The chat protocol of training, with the learner's tokenizer.

        Raises:
            ConfigError: when the model's context is too short or the prompts do not fit the model.
        """
        return self._chat_with(self.max_actions_per_turn)

    @property
    def chats(self) -> dict[str, Chat]:
        """The chat protocols of training, by environment."""
        return {name: self._chat_with(self.actions_per_turn_in(name)) for name in self.envs}

    @property
    def dialogue(self) -> Dialogue:
        """The wording of the dialogue in training."""
        return Dialogue(self.prompts, self.max_actions_per_turn)

    def evaluation_dialogue(self, eval_set: str) -> Dialogue:
        """Return the wording of the dialogue on an evaluation set; with the policy's tokenizer,
        unless the policy is behind an endpoint."""
        actions = self.actions_per_turn_on(eval_set)
        if self.learner.endpoint is not None:
            if self.prompts.tools == "template":
                raise ConfigError(
                    "data.prompts.tools is template, but the policy is behind an endpoint, which "
                    "applies a template of its own: set data.prompts.tools to answer"
                )
            return Dialogue(self.prompts, actions)
        return self._chat_with(actions)

    def _chat_with(self, max_actions_per_turn: int) -> Chat:
        if max_actions_per_turn not in self._chats:
            language = self.learner.language
            try:
                language.check_context(self.max_context)
                chat = Chat(
                    self.prompts, language.tokenizer, language.markers, max_actions_per_turn
                )
            except ValueError as error:
                raise ConfigError(str(error)) from error
            self._chats[max_actions_per_turn] = chat
        return self._chats[max_actions_per_turn]

    @property
    def evaluation_rollout(self) -> RolloutConfig:
        """The limits of a trajectory in evaluations."""
        return self.evaluation.at_least.widen(self.rollout)

    @property
    def max_context(self) -> int:
        """Maximum tokens of a trajectory, in training and in evaluations."""
        return self.evaluation_rollout.max_context

    def actions_per_turn_on(self, eval_set: str) -> int:
        """Return the maximum actions in one response on an evaluation set."""
        wanted = self.evaluation_rollout.max_actions_per_turn
        return min(wanted, self.eval_sets[eval_set].max_actions)

    def train_dataloader(self) -> Iterable[IterationBatch]:
        """Return the loader of the run, which collects a rollout each time it is iterated over."""
        return IterationLoader(self)

    def iteration_batches(self) -> Iterator[IterationBatch]:
        """Yield the optimizer batches of the learner's next iteration.

        All work that needs the learner is done before the first batch is yielded: the trainer
        prefetches one batch, so later work would run between optimizer steps.
        """
        trainer, learner = self.attached_trainer, self.learner
        iteration = learner.iteration
        if is_done(iteration, trainer):  # Lightning fetches a batch before it checks max_epochs
            for callback in rollout_callbacks(trainer):
                callback.on_already_finished(trainer, trainer.lightning_module)
            return
        if iteration < self.warm_start.iterations:
            learner.begin_iteration(Phase.WARM_START)
            yield from demonstration_batches(
                self.demonstrations,
                self.warm_start,
                iteration=iteration,
                seed=self.run_seed,
                right_answers=self._right_answers(),
            )
            return
        if iteration and iteration == self.warm_start.iterations:
            self._right_answers()
        learner.begin_iteration(Phase.RL)
        collector = Collector(trainer, self.envs, self.chats, self.rollout, learner.generate)
        with learner.rollout_weights(self.max_context):
            collected = collect_groups(
                lambda seeds: collector.collect(seeds, iteration),
                lambda nth: self.group_seeds(iteration, nth),
                self.dynamic_sampling,
            )
        self._learn_of(collector.played)
        weights = collector.policy_weights(collected)
        if is_discarded(trainer):
            return  # such as after a collapse: no further step on this data
        if self._is_lost(collected.groups):
            return
        scales = None if self.mixture is None else self.mixture.reward_scales()
        rollout = collector.pack(collected, weights, scales)
        batches = (
            [] if self._imitates_alone else self._rl_batches(rollout, weights, collected.groups)
        )
        hindsight = self._hindsight_batches(collector.played, iteration)
        for _ in range(self.rollout.ppo_epochs):
            yield from batches
        yield from hindsight  # after RL, whose ratios are those of the weights that sampled

    def _right_answers(self) -> float | None:
        """Ask the teacher's questions and tell how many were answered right; None without any."""
        if not self._questions:
            return None
        with self.learner.rollout_weights(self.max_context):
            share = right_answers(self._questions, self.learner.generate)
        done, count = self.learner.iteration, len(self._questions)
        announce(
            self.attached_trainer,
            f"warm start: {share:.1%} of {count} held-out answers right after {done} iterations",
        )
        return share

    def _learn_of(self, played: Sequence[TrajectoryGroup]) -> None:
        """Let the curriculum, or the mixture, take note of this rank's groups."""
        if self.mixture is not None:
            self.mixture.learn(played)
            return
        tallies = sum_tallies(gather_objects(self.curriculum.tally(played)))
        self._progress = self.curriculum.learn(self._progress, tallies)

    def _is_lost(self, groups: Sequence[TrajectoryGroup]) -> bool:
        """Return whether the environment failed in every trajectory; such an iteration has no
        update.

        Raises:
            ConfigError: on all ranks, if that has happened in ``_MOST_LOST`` rollouts in a row, or
                in the first one since the start of the command.
        """
        told = lost_rollout(groups, ", ".join(env.name for env in self.envs.values()))
        if told is None:
            self._lost_in_a_row = 0
            return False
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= _MOST_LOST:
            raise ConfigError(
                f"{told}\n  mend the environment (the warnings above name its other errors); "
                "--ckpt_path last then goes on from the last checkpoint"
            )
        record_shared_fault(FaultKind.ROLLOUT, told.replace("\n  ", "; "))
        announce(self.attached_trainer, f"warning: {told}\n  no update in this iteration")
        return True

    @property
    def _imitates_alone(self) -> bool:
        return self.hindsight is not None and self.hindsight.alone

    def _rl_batches(
        self,
        rollout: RolloutBatch,
        weights: Sequence[Sequence[float]],
        groups: Sequence[TrajectoryGroup],
    ) -> Sequence[TrainingBatch]:
        """Return this rank's optimizer batches of a rollout, for one pass over it."""
        batch = self.learner.build_training_batch(rollout, on_policy=self.rollout.is_on_policy)
        if self.distillation is not None:
            hinted = HintedRollout.of(rollout, self._with_hints(groups, weights))
            batch = self.learner.distill(batch, hinted, self.distillation)
        trainer = self.attached_trainer
        for callback in rollout_callbacks(trainer):
            callback.on_training_batch(trainer, trainer.lightning_module, batch)
        return optimizer_batches(batch, self._num_updates(weights))

    def _with_hints(
        self, groups: Sequence[TrajectoryGroup], weights: Sequence[Sequence[float]]
    ) -> list[HintedTrajectory]:
        """Return this rank's trajectories that are distilled, written again with hints."""
        assert self.distillation is not None
        written, chats = list[HintedTrajectory](), self.chats
        for name in self._hinted:
            writer = HintWriter(self.envs[name], chats[name], self.rollout, self.distillation)
            own = [pair for pair in zip(groups, weights, strict=True) if pair[0].env == name]
            written += writer.hinted(
                [group for group, _ in own], [row for _, row in own], self.learner.iteration
            )
        return written

    def _hindsight_batches(
        self, groups: Sequence[TrajectoryGroup], iteration: int
    ) -> list[HindsightBatch]:
        """Return this rank's batches of hindsight imitation, from all groups it played, kept or
        not."""
        if self.hindsight is None or self._memory is None:
            return []
        solutions, by_env, chats = list[Solution](), groups_by_env(groups), self.chats
        for name, env in self.envs.items():
            config, own = self._hindsight_of[name], by_env.get(name, [])
            writer = SolutionWriter(env, chats[name], self.rollout, config, self.run_seed)
            solutions += writer.solutions(own, iteration)
        return self._memory.batches(solutions, iteration)

    def forget_since(self, iteration: int) -> None:
        """Forget the solutions found from an iteration on, because its policy was rolled back."""
        if self._memory is not None:
            self._memory.forget_since(iteration)

    def group_seeds(self, iteration: int, collection: int) -> list[GroupSeed]:
        """Return the group seeds of one collection of an RL iteration, over all ranks.

        Every rank must call it, and gets the same ones.
        """
        if self.mixture is not None:
            return self.mixture.group_seeds(iteration, collection, self._groups_per_collection)
        since = iteration - self.warm_start.iterations
        position = self._seeds.position(since, self._seeds_per_collection)
        pool = group_seeds(self.run_seed, position, self._seeds_per_collection, collection)
        rng = random.Random(f"curriculum {self.run_seed} {iteration} {collection}")
        wanted = self._groups_per_collection
        chosen = choose_starts(self.curriculum, self.env, pool, wanted, self._progress, rng)
        first_id = collection * wanted
        return [replace(start, group_id=first_id + place) for place, start in enumerate(chosen)]

    @property
    def chooses_starts(self) -> bool:
        """Whether the curriculum chooses among more starts than are played."""
        if self.mixture is not None:
            return self.mixture.chooses_starts
        more = self._seeds_per_collection > self._groups_per_collection
        return more or self.curriculum.by_start

    @property
    def running_success(self) -> dict[str, float]:
        """The success rate at each difficulty by which the curriculum chooses; empty if it keeps
        none. In a mixture, names are those of the environment and of the difficulty."""
        if self.mixture is not None:
            return self.mixture.running_success
        if self.curriculum.by_start:
            return {}
        return {name: tally.success for name, tally in self._progress.items()}

    @property
    def _groups_per_collection(self) -> int:
        return self.rollout.num_groups * self.rollout.online_k

    @property
    def _seeds_per_collection(self) -> int:
        return self.curriculum.pool_size(self._groups_per_collection)

    def _num_updates(self, weights: Sequence[Sequence[float]]) -> int:
        """Return the number of optimizer batches to split a rollout into.

        With ``scale_updates`` it is in proportion to the trajectories kept on all ranks.
        """
        if not self.rollout.scale_updates:
            return self.rollout.online_k
        is_kept = [weight > 0 for row in weights for weight in row]
        counts = gather_objects((sum(is_kept), len(is_kept)))
        kept, collected = (sum(column) for column in zip(*counts, strict=True))
        return num_updates(kept, collected, self.rollout.online_k)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the seed stream, the curriculum's progress and the memory of
        solutions, as plain data and tensors."""
        since = max(0, self.learner.iteration - self.warm_start.iterations)
        state: dict[str, Any] = {
            "seeds": self._seeds.state_dict(since, self._seeds_per_collection),
            "progress": {name: list(astuple(t)) for name, t in self._progress.items()},
            "lost_in_a_row": self._lost_in_a_row,
        }
        if self.mixture is not None:
            state["mixture"] = self.mixture.state_dict()
        if self._memory is not None:
            state["memory"] = self._memory.state_dict()
        is_warm = self.learner.iteration < self.warm_start.iterations
        if is_warm and self.warm_start.teacher.lessons_are_saved:
            kept = self.demonstrations
            state["demonstrations"] = {each.name: getattr(kept, each.name) for each in fields(kept)}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the seed stream, even if the number of groups per collection or the curriculum
        has changed. Without saved progress, as in older checkpoints, no difficulty counts as
        played; a memory that was not saved, because it is new to the run, begins empty."""
        self._seeds.load_state_dict(state_dict["seeds"])
        self._lost_in_a_row = state_dict.get("lost_in_a_row", 0)
        saved = state_dict.get("progress", {})
        self._progress = {name: Tally(*counts) for name, counts in saved.items()}
        if self.mixture is not None and "mixture" in state_dict:
            self.mixture.load_state_dict(state_dict["mixture"])
        if self._memory is not None and "memory" in state_dict:
            self._memory.load_state_dict(state_dict["memory"])
        if "demonstrations" in state_dict:
            self._demonstrations = saved_set = DemonstrationSet(**state_dict["demonstrations"])
            count = len(torch.unique(saved_set.demonstration_ids))
            announce(self.attached_trainer, f"warm start: {count} demonstrations of the checkpoint")

    @property
    def demonstrations(self) -> DemonstrationSet:
        """The teacher's demonstrations, made once and kept."""
        if self._demonstrations is None:
            first_seed, chats = self.run_seed * SEEDS_PER_RUN + FIRST_DEMONSTRATION, self.chats
            given = [
                demonstrate(
                    self.envs[name],
                    chats[name],
                    self.rollout,
                    own,
                    first_seed=first_seed,
                    name=name,
                    report=self._report_teaching,
                    record=partial(self._record_teaching, name),
                )
                for name, own in self._warm_starts().items()
            ]
            lessons = [lesson for each in given for lesson in each.lessons]
            # Together, so that no two demonstrations of a mixture have the same number.
            self._demonstrations = packed([*lessons, *self._hinted_lessons(first_seed)])
            self._questions = tuple(question for each in given for question in each.questions)
        return self._demonstrations

    def _hinted_lessons(self, first_seed: int) -> list[Lesson]:
        """Return the demonstrations from which the policy learns what a hint is, divided evenly
        among the environments that have an expert."""
        config = self.distillation
        if config is None or not config.lessons:
            return []
        names, warm_starts = self._hinted, self._warm_starts()
        lessons = list[Lesson]()
        for number, name in enumerate(names):
            count = len(range(number, config.lessons, len(names)))
            own = warm_starts.get(name)
            difficulties = () if own is None else own.difficulties
            task = TeachingTask(
                *(self.envs[name], self.chats[name], self.rollout),
                *(count, difficulties, first_seed),
            )
            lessons += hinted_lessons(task) if count else ()
        announce(self.attached_trainer, f"warm start: {len(lessons)} demonstrations with hints")
        return lessons

    def _report_teaching(self, text: str) -> None:
        trainer = self.attached_trainer
        for callback in rollout_callbacks(trainer):
            callback.on_teaching_progress(trainer, trainer.lightning_module, text)

    def _record_teaching(self, env: str, metrics: Mapping[str, float]) -> None:
        trainer, prefix = self.attached_trainer, f"{env}/" if env else ""
        named = {f"{prefix}{key}": value for key, value in metrics.items()}
        for callback in rollout_callbacks(trainer):
            callback.on_teaching_end(trainer, trainer.lightning_module, named)

    def _warm_starts(self) -> dict[str, WarmStart]:
        """Return the warm start of each environment that the teacher can teach; in a mixture, with
        its share of the demonstrations and the difficulties that are named after it."""
        config, names = self.warm_start, self._taught
        if self.mixture is None:
            return dict.fromkeys(names, config)
        share = {name: self.mixture.config.share(name) for name in names}
        counts = {n: config.demonstrations * s / sum(share.values()) for n, s in share.items()}
        return {
            name: replace(
                config,
                demonstrations=max(1, round(count)),
                difficulties=tuple(
                    each.removeprefix(f"{name}/")
                    for each in config.difficulties
                    if each.startswith(f"{name}/")
                ),
            )
            for name, count in counts.items()
        }

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Return an evaluation set with its fixed initial states; every rank must call it.

        Raises:
            ConfigError: on all ranks, when the environment yields no initial states on one of them,
                or other ones than the set's pin says.
        """
        if name not in self._evaluation_sets:
            index = list(self.eval_sets).index(name)
            size, pin = self.evaluation.size, self.evaluation.pins.get(name)
            self._evaluation_sets[name] = EvaluationSet.build(
                name, self.eval_sets[name], index, size, pin
            )
        return self._evaluation_sets[name]

    def setup(self, stage: str) -> None:
        """Build the evaluation sets; print warnings about them at the start of a run, such as
        overlap with training."""
        self._start_workers()
        eval_sets = [self.evaluation_set(name) for name in self.eval_sets]
        if stage != "fit":
            return
        first = self.run_seed * SEEDS_PER_RUN
        training_seeds = range(first, first + _COMPARED_TRAINING_SEEDS)
        for eval_set in eval_sets if rank() == 0 else ():
            name = env_of_set(eval_set.name, self.envs)
            if name is None:
                print(
                    f"data.eval_sets.{eval_set.name} begins with the name of no environment of the "
                    f"mixture ({', '.join(self.envs)}): it evaluates a task that is not trained on"
                )
                continue
            for warning in eval_set.warnings(self.envs[name], training_seeds):
                print(warning)

    def _start_workers(self) -> None:
        """Move the environments to worker processes, if the run has them."""
        workers, limit = self.rollout.env_workers, self.rollout.step_timeout_s
        if not workers or self._host is not None:
            return
        self._host = host = EnvHost(workers, limit)
        try:
            self.envs = {name: host.wrap(env) for name, env in self.envs.items()}
            if self.mixture is not None:
                self.mixture.envs = self.envs
            self.eval_sets = {name: host.wrap(env) for name, env in self.eval_sets.items()}
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def teardown(self, stage: str) -> None:
        """End the worker processes; they start again when they are needed."""
        if self._host is not None:
            self._host.close()

    def evaluate(
        self, learner: Learner, eval_set: str, temperature: float, samples: int = 1
    ) -> list[TrajectoryGroup]:
        """Play this rank's share of an evaluation set.

        Args:
            learner: The module that samples.
            eval_set: Name of the evaluation set.
            temperature: Sampling temperature; 0 is greedy.
            samples: Trajectories per initial state. The first one is the same for any number.

        Raises:
            ConfigError: on all ranks, when no initial state, on any rank, leaves room in the
                context for a response.
        """
        chosen, trainer = self.evaluation_set(eval_set), self.attached_trainer
        callbacks = list(rollout_callbacks(trainer))
        share = chosen.group_seeds[rank() :: world_size()]
        rollout = replace(self.evaluation_rollout, group_size=samples)
        sampling = Sampling(temperature, rollout.max_response_tokens)
        iteration, played = chosen.noise_iteration(temperature), list[TrajectoryGroup]()

        def progress(finished: int, total: int) -> None:
            before = len(played) * samples
            for callback in callbacks:
                callback.on_evaluation_progress(
                    trainer, trainer.lightning_module, before + finished, len(share) * samples
                )

        if learner.endpoint is not None:
            client = learner.endpoint
            return all_or_none(
                lambda: converse(
                    chosen.env,
                    share,
                    self.evaluation_dialogue(eval_set),
                    client,
                    rollout,
                    iteration=iteration,
                    sampling=sampling,
                    progress=progress,
                )
            )
        chat = self._chat_with(self.actions_per_turn_on(eval_set))
        at_once = max(1, len(share) // samples)  # with the memory of one trajectory per state
        with learner.rollout_weights(self.max_context):
            for first in range(0, len(share), at_once):
                played += collect(
                    chosen.env,
                    share[first : first + at_once],
                    chat,
                    learner.generate,
                    rollout,
                    iteration=iteration,
                    sampling=sampling,
                    progress=progress,
                )
        check_room(played)
        return played

    def evaluate_baseline(self, eval_set: str, baseline: Actor) -> list[TrajectoryGroup]:
        """Play an evaluation set with a baseline, every initial state once."""
        chosen = self.evaluation_set(eval_set)
        return [
            play_baseline(chosen.env, seed, place, self.evaluation_rollout, baseline)
            for place, seed in enumerate(chosen.seeds)
        ]

    def val_dataloader(self) -> list[EvaluationLoader]:
        """Return one loader per evaluation set, which plays the set when iterated over."""
        return [EvaluationLoader(self, eval_set) for eval_set in self.eval_sets]

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


def _training_envs(env: TextEnv | None, envs: Mapping[str, TextEnv | None]) -> dict[str, TextEnv]:
    """Return the environments to train in by name; a single one has the name ``""``.

    Raises:
        ValueError: unless there is either one environment or a mixture of at least two.
    """
    mixed = {name: each for name, each in envs.items() if each is not None}
    if env is not None and mixed:
        raise ValueError(
            f"data.env is {type(env).__name__}, but data.envs has {', '.join(mixed)}: set data.env "
            "to null, or leave data.envs out"
        )
    if env is not None:
        return {"": env}
    if not mixed:
        raise ValueError(
            "data.env must be set: give a config first, such as --config sokoban.yaml; or name the "
            "environment to train in, or several in data.envs"
        )
    if len(mixed) == 1:
        (name,) = mixed
        raise ValueError(f"data.envs has {name} alone, which is no mixture: set data.env to it")
    for name in mixed:
        if not name or "/" in name or name != name.strip():
            raise ValueError(f"data.envs has the name {name!r}; it must be a word without a slash")
    return mixed


def _taught(warm_start: WarmStart, envs: Mapping[str, TextEnv], *, think: bool) -> list[str]:
    """Return the names of the environments that the teacher can teach, at least one.

    Raises:
        ValueError: if there is none; the message has the teacher's reasons.
    """
    taught, reasons = [], []
    for name, env in envs.items() if warm_start.iterations else ():
        try:
            warm_start.chosen_teacher.check(env, think=think)
        except ValueError as error:
            reasons.append(str(error))
        else:
            taught.append(name)
    if reasons and not taught:
        raise ValueError(
            f"data.warm_start.iterations is {warm_start.iterations}, but "
            + "; ".join(dict.fromkeys(reasons))
            + ", or set it to 0"
        )
    return taught


def _key_of(name: str) -> str:
    """Return the key, below ``data``, of a training environment."""
    return f"envs.{name}" if name else "env"


def _accepting(check: Callable[[TextEnv], None], envs: Mapping[str, TextEnv]) -> tuple[str, ...]:
    """Return the names of the environments that a check accepts, at least one, in order.

    Raises:
        ValueError: the check's, if it accepts none.
    """
    accepted, refusal = list[str](), None
    for name, env in envs.items():
        try:
            check(env)
        except ValueError as error:
            refusal = error
        else:
            accepted.append(name)
    if refusal is not None and not accepted:
        raise refusal
    return tuple(sorted(accepted))


class IterationLoader:
    """The training loader, which collects a rollout each time it is iterated over.

    It has no ``__len__``, since Lightning would derive the epoch's end from it.
    """

    def __init__(self, data: RolloutDataModule) -> None:
        self.data = data

    def __iter__(self) -> Iterator[IterationBatch]:
        return self.data.iteration_batches()


class EvaluationLoader:
    """Loader of one evaluation set, which is played as a single batch.

    Within ``fit`` every initial state is played once, elsewhere ``evaluation.samples`` times.
    """

    def __init__(self, data: RolloutDataModule, eval_set: str) -> None:
        self.data, self.eval_set = data, eval_set

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Evaluation]:
        data, evaluation = self.data, self.data.evaluation
        is_training = data.attached_trainer.state.fn == TrainerFn.FITTING
        samples = 1 if is_training or not evaluation.temperature else evaluation.samples
        groups = data.evaluate(data.learner, self.eval_set, evaluation.temperature, samples)
        yield Evaluation(self.eval_set, evaluation.temperature, tuple(groups))
