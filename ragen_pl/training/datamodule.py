"""The data module: one Lightning epoch is one rollout of the current policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import lightning.pytorch as pl

from ragen_pl.distributed.collectives import rank
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.fingerprint import code_fingerprint
from ragen_pl.envs.workers import EnvHost
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.curriculum import Curriculum, Uniform
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation, Solutions
from ragen_pl.rollout.hints import Hints
from ragen_pl.rollout.mixture import Mixture, MixtureConfig, check_difficulties
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.seeds import SEEDS_PER_RUN
from ragen_pl.rollout.self_distillation import SelfDistillation
from ragen_pl.rollout.start_stream import SingleEnvStream, StartStream
from ragen_pl.training.callback_checks.fitted_callbacks import fit_to_iterations
from ragen_pl.training.callback_checks.unfit_callbacks import refuse_unfit_callbacks
from ragen_pl.training.callback_checks.user_callbacks import refuse_wrong_hooks
from ragen_pl.training.dialogues import Dialogues
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.environments import accepting, check_envs, envs_by_key, training_envs
from ragen_pl.training.evaluation.evaluator import EvaluationLoader, Evaluator
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.learner import Learner, current_learner
from ragen_pl.training.rl_iteration import RLIteration
from ragen_pl.training.run_warnings.few_turns import few_turns_warning
from ragen_pl.training.run_warnings.lost_rollouts import LostRollouts
from ragen_pl.training.run_warnings.short_runs import critic_alone, cut_warm_start
from ragen_pl.training.run_warnings.small_groups import small_groups_warning
from ragen_pl.training.teaching import Teaching, check_teacher, taught_envs, warm_starts
from ragen_pl.training.trainer import all_callbacks, is_done, rollout_callbacks
from ragen_pl.types import Demonstration, HindsightBatch, Phase, TrainingBatch

IterationBatch = TrainingBatch | Demonstration | HindsightBatch
"""A batch of one optimizer step."""
_COMPARED_TRAINING_SEEDS = 256
"""Number of training seeds, the run's first ones, that are compared with its evaluation sets."""


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
        self.envs: Final = training_envs(env, envs)
        self.eval_sets: Final = {n: each for n, each in eval_sets.items() if each is not None}
        """With ``envs``, shared by the parts below; worker processes take their places in it."""
        self.prompts, self.rollout, self.warm_start = prompts, rollout, warm_start
        self.hindsight, self.distillation = hindsight, distillation
        self.evaluation, self.dynamic_sampling = evaluation, dynamic_sampling
        self.run_seed = run_seed
        evaluation.check_names(eval_sets)
        self._check_keys(mixture)
        taught = taught_envs(warm_start, self.envs, think=prompts.think)
        self.rollout_in: Final = {name: mixture.rollout_in(name, rollout) for name in self.envs}
        """The rollout in each environment: in a mixture, with limits of its own."""
        self.starts = self._starts(curriculum, mixture)
        self.solutions, hints = self._solutions(), self._hints()
        self.dialogues = Dialogues(
            prompts, rollout, self.rollout_in, evaluation, self.envs, self.eval_sets
        )
        own = warm_starts(warm_start, taught, mixture)
        self.teaching = Teaching(warm_start, own, self.dialogues, hints, run_seed)
        self.lost = LostRollouts()
        self.rl_iteration = RLIteration(
            self.dialogues, self.starts, dynamic_sampling, hints, self.solutions, self.lost
        )
        self.evaluator = Evaluator(evaluation, self.dialogues)
        self._host: EnvHost | None = None
        self._told = set[str]()
        """The warnings that were printed."""

    def _check_keys(self, mixture: MixtureConfig) -> None:
        """Check keys against each other and against the environments, before parts are built.

        Raises:
            ValueError: for the first one that is wrong.
        """
        rollout, prompts = self.rollout, self.prompts
        if self.dynamic_sampling is not None:
            self.dynamic_sampling.check(rollout.group_size)
        mixture.check_names(self.envs)
        check_envs(envs_by_key(self.envs, self.eval_sets), prompts, self.check_env)
        for name, term in rollout.reward_terms.items():
            check_term = partial(
                term.check,
                f"data.rollout.rewards.{name}",
                think=prompts.think,
                max_response_tokens=rollout.max_response_tokens,
            )
            accepting(check_term, self.envs)
        if self.is_mixture:
            check_difficulties(self.warm_start.difficulty_names, self.envs)
        if not self.eval_sets:
            raise ValueError(
                "data.eval_sets is empty; name at least one evaluation set to evaluate on"
            )

    def _starts(self, curriculum: Curriculum, mixture: MixtureConfig) -> StartStream:
        """Return the starts of the run.

        Raises:
            ValueError: when a curriculum has nothing to choose between.
        """
        groups = self.rollout.num_groups * self.rollout.online_k
        if self.is_mixture:
            return Mixture(self.envs, mixture, curriculum, groups=groups, run_seed=self.run_seed)
        return SingleEnvStream(
            self.envs,
            curriculum,
            groups=groups,
            first_iteration=self.warm_start.iterations,
            run_seed=self.run_seed,
        )

    def _solutions(self) -> Solutions | None:
        """Return the solutions that are imitated in hindsight; None without it.

        Raises:
            ValueError: when no environment accepts its keys.
        """
        config, think = self.hindsight, self.prompts.think
        if config is None:
            return None
        accepting(partial(config.check, rollout=self.rollout, think=think), self.envs)
        return Solutions(config, self.envs, self.rollout_in, think=think, run_seed=self.run_seed)

    def _hints(self) -> Hints | None:
        """Return the hints of self-distillation; None without it.

        Raises:
            ValueError: when RL is left out, or no environment can have hints.
        """
        config = self.distillation
        if config is None:
            return None
        if self.hindsight is not None and self.hindsight.alone:
            raise ValueError(
                "data.distillation is set, but hindsight.alone leaves RL out, whose advantages "
                "it adds to: set one of them back"
            )
        check = partial(
            config.check,
            rollout=self.rollout,
            tools=self.prompts.tools,
            warm=self.warm_start.iterations > 0,
        )
        names = accepting(check, self.envs)
        lessons = accepting(config.check_lessons, {name: self.envs[name] for name in names})
        return Hints(config, names, lessons if config.lessons else (), self.envs, self.rollout_in)

    def __str__(self) -> str:
        """Name the environments; Lightning's text would iterate over loaders, which are no lists
        but play."""
        names = ", ".join(type(each).__name__ for each in self.envs.values())
        return f"{type(self).__name__} of {names}"

    @property
    def is_mixture(self) -> bool:
        """Whether there are several environments to train in."""
        return len(self.envs) > 1

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

    def code_fingerprints(self) -> dict[str, str]:
        """Return fingerprints of the environments' code, by key."""
        envs = envs_by_key(self.envs, self.eval_sets)
        return {f"data.{key}": code_fingerprint(env) for key, env in envs.items()}

    def vocabulary(self) -> Iterable[str]:
        """Yield the pieces of text that a policy of this run should have words for."""
        yield from self.dialogues.vocabulary()
        yield from self.rollout.memory.vocabulary()
        yield from self.warm_start.teacher.vocabulary()
        if self.distillation is not None:
            yield from self.distillation.vocabulary()

    @property
    def attached_trainer(self) -> pl.Trainer:
        """The trainer that runs this data module.

        Raises:
            ConfigError: when its loaders are used without one.
        """
        if self.trainer is None:
            raise ConfigError(
                "the data module's loaders play the trainer's policy, and there is no trainer: "
                "give it the data module whole, trainer.fit(module, datamodule=data)"
            )
        return self.trainer

    def check_learner(self, learner: Learner) -> None:
        """Check that a learner can learn from this data, and a teacher teach.

        Raises:
            ValueError: for the first setting that another one contradicts.
        """
        check_teacher(self.warm_start, self.envs, think=self.prompts.think)
        names = [name for name in self.envs if name]
        learner.check_rollouts(names, self.prompts, self.rollout, self.hindsight)

    def check_run(self, trainer: pl.Trainer, learner: Learner) -> None:
        """Check that a learner can learn from this data, and that every callback can do its work.

        Raises:
            ValueError: for the first setting that another one contradicts.
        """
        self.check_learner(learner)
        refuse_wrong_hooks(all_callbacks(trainer))
        refuse_unfit_callbacks(all_callbacks(trainer))
        for each in all_callbacks(trainer):
            fit_to_iterations(each, self.eval_sets)
        for callback in rollout_callbacks(trainer):
            callback.check_run(trainer, self.rollout)

    # --- before and after a run -------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Check the parts of the run against each other, as the command does before it starts;
        build the evaluation sets and print, once each, warnings about them, such as overlap with
        training, or in an evaluation that their starts repeat."""
        if stage == "fit" and self.trainer is not None:
            self.check_run(self.trainer, current_learner(self.trainer))
        self._start_workers()
        for name in self.eval_sets:
            self.evaluator.evaluation_set(name)
        for line in self._warnings(stage) if rank() == 0 else ():
            if line not in self._told:
                self._told.add(line)
                print(line)

    def _warnings(self, stage: str) -> Iterator[str]:
        """Yield what is to be told before a run or an evaluation."""
        if stage != "fit":
            yield from self.evaluator.repeats()
            return
        first = self.run_seed * SEEDS_PER_RUN
        training_seeds = range(first, first + _COMPARED_TRAINING_SEEDS)
        yield from self.evaluator.warnings(self.envs, training_seeds)
        for name, env in self.envs.items():
            turns, each = self.rollout_in[name].max_turns, self.dialogues.actions_per_turn_in(name)
            if told := few_turns_warning(env, turns, each):
                yield told
        if self.trainer is not None:
            alone = self.hindsight is not None and self.hindsight.alone
            comparing = None if alone else current_learner(self.trainer).comparing_members
            if told := small_groups_warning(comparing, self.rollout):
                yield told
            yield from self._short_run_warnings(self.trainer)

    def _short_run_warnings(self, trainer: pl.Trainer) -> Iterator[str]:
        """Yield a line per part of the run that the trainer's limits leave out."""
        epochs, steps = trainer.max_epochs, trainer.max_steps
        critic_only = current_learner(trainer).critic_only_iterations
        for told in (
            cut_warm_start(self.warm_start, epochs, steps),
            critic_alone(self.warm_start, critic_only, self.rollout, epochs, steps),
        ):
            if told is not None:
                yield told

    def _start_workers(self) -> None:
        """Move the environments to worker processes, if the run has them."""
        workers, limit = self.rollout.env_workers, self.rollout.step_timeout_s
        if not workers or self._host is not None:
            return
        self._host = host = EnvHost(workers, limit)
        try:
            for envs in (self.envs, self.eval_sets):
                envs.update({name: host.wrap(env) for name, env in envs.items()})
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def teardown(self, stage: str) -> None:
        """End the worker processes; they start again when they are needed."""
        if self._host is not None:
            self._host.close()

    # --- batches ----------------------------------------------------------------------------

    def train_dataloader(self) -> Iterable[IterationBatch]:
        """Return the loader of the run, which collects a rollout each time it is iterated over."""
        return IterationLoader(self)

    def iteration_batches(self) -> Iterator[IterationBatch]:
        """Yield the optimizer batches of the learner's next iteration.

        All work that needs the learner is done before the first batch is yielded: the trainer
        prefetches one batch, so later work would run between optimizer steps.
        """
        trainer = self.attached_trainer
        learner = current_learner(trainer)
        iteration = learner.iteration
        _check_count(trainer, iteration)  # not in setup, which comes before a checkpoint is loaded
        if is_done(iteration, trainer):  # Lightning fetches a batch before it checks max_epochs
            for callback in rollout_callbacks(trainer):
                callback.on_already_finished(trainer, trainer.lightning_module)
            return
        if iteration < self.warm_start.iterations:
            learner.begin_iteration(Phase.WARM_START)
            yield from self.teaching.batches(trainer)
            return
        if iteration and iteration == self.warm_start.iterations:
            self.teaching.ask_questions(trainer)
        learner.begin_iteration(Phase.RL)
        self.teaching.forget()
        yield from self.rl_iteration.batches(trainer)

    def val_dataloader(self) -> list[EvaluationLoader]:
        """Return one loader per evaluation set, which plays the set when iterated over."""
        trainer = self.attached_trainer
        return [EvaluationLoader(self.evaluator, trainer, name) for name in self.eval_sets]

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader

    # --- what is saved ----------------------------------------------------------------------

    def forget_since(self, iteration: int) -> None:
        """Forget the solutions found from an iteration on, because its policy was rolled back."""
        if self.solutions is not None:
            self.solutions.memory.forget_since(iteration)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the seed stream, the curriculum's progress, the memory of
        solutions and the demonstrations that are kept, as plain data and tensors."""
        trainer = self.attached_trainer
        state = self.starts.state_dict(current_learner(trainer).iteration)
        state["lost_in_a_row"] = self.lost.in_a_row
        if self.solutions is not None:
            state["memory"] = self.solutions.memory.state_dict()
        return state | self.teaching.state_dict(trainer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state. A memory that was not saved, because it is new to the run,
        begins empty."""
        self.starts.load_state_dict(state_dict)
        self.lost.in_a_row = state_dict.get("lost_in_a_row", 0)
        if self.solutions is not None and "memory" in state_dict:
            self.solutions.memory.load_state_dict(state_dict["memory"])
        if "demonstrations" in state_dict:
            self.teaching.load_state_dict(state_dict, self.attached_trainer)


def _check_count(trainer: pl.Trainer, done: int) -> None:
    """Refuse a trained module for a trainer that counts from the start: seeds, schedules and the
    end of a run go by the module's iterations, so that epochs would train nothing.

    Args:
        done: Iterations that the module was trained for.

    Raises:
        ConfigError: naming both counts.
    """
    # Of a checkpoint, Lightning counts the last epoch only when training begins.
    if trainer.ckpt_path is None and done != trainer.current_epoch:
        raise ConfigError(
            f"the module was trained for {done} iterations, but this trainer for "
            f"{trainer.current_epoch}: to go on, give fit a checkpoint of it as ckpt_path "
            f"(trainer.save_checkpoint), and its trainer max_epochs above {done}; to start anew, "
            "make a new StarPO"
        )


class IterationLoader:
    """The training loader, which collects a rollout each time it is iterated over.

    It has no ``__len__``, since Lightning would derive the epoch's end from it.
    """

    def __init__(self, data: RolloutDataModule) -> None:
        self.data = data

    def __iter__(self) -> Iterator[IterationBatch]:
        return self.data.iteration_batches()
