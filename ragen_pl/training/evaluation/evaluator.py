"""The evaluations of a run: its evaluation sets, played by the policy and by baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.distributed.collectives import all_or_none, rank, world_size
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.actors import Actor
from ragen_pl.rollout.baselines import play_baseline
from ragen_pl.rollout.collect import collect
from ragen_pl.rollout.endpoint_collect import collect_from_endpoint
from ragen_pl.rollout.mixture import env_of_set
from ragen_pl.training.dialogues import Dialogues
from ragen_pl.training.environments import key_of
from ragen_pl.training.evaluation.sets import EvaluationConfig, EvaluationSet
from ragen_pl.training.learner import current_learner
from ragen_pl.training.run_warnings.lost_rollouts import check_room
from ragen_pl.training.trainer import rollout_callbacks
from ragen_pl.types import Evaluation, Sampling, TrajectoryGroup


class Evaluator:
    """The player of a run's evaluation sets, which are built when they are first asked for.

    Args:
        config: Size, sampling and identity of evaluations.
        dialogues: The dialogues of the run, with the environments of its evaluation sets.
    """

    def __init__(self, config: EvaluationConfig, dialogues: Dialogues) -> None:
        self.config, self.dialogues = config, dialogues
        self._evaluation_sets: dict[str, EvaluationSet] = {}

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Return an evaluation set with its fixed initial states; every rank must call it.

        Raises:
            ConfigError: on all ranks, when the environment yields no initial states on one of them,
                or other ones than the set's pin says.
        """
        if name not in self._evaluation_sets:
            eval_sets = self.dialogues.eval_sets
            index = list(eval_sets).index(name)
            size, pin = self.config.size, self.config.pins.get(name)
            self._evaluation_sets[name] = EvaluationSet.build(
                name, eval_sets[name], index, size, pin
            )
        return self._evaluation_sets[name]

    def warnings(self, envs: Mapping[str, TextEnv], training_seeds: Iterable[int]) -> Iterator[str]:
        """Yield a line per reason why results do not measure generalization. Where one rank alone
        calls it, all evaluation sets must have been built.

        Args:
            envs: The environments to train in, by name.
            training_seeds: Seeds of training to compare with the evaluation sets'.
        """
        seeds = list(training_seeds)
        for eval_set in map(self.evaluation_set, self.dialogues.eval_sets):
            name = env_of_set(eval_set.name, envs)
            if name is None:
                yield (
                    f"data.eval_sets.{eval_set.name} begins with the name of no environment of the "
                    f"mixture ({', '.join(envs)}): it evaluates a task that is not trained on"
                )
                continue
            yield from eval_set.warnings(envs[name], key_of(name), seeds)

    def repeats(self) -> Iterator[str]:
        """Yield a line per evaluation set whose initial states repeat. Where one rank alone calls
        it, all evaluation sets must have been built."""
        for eval_set in map(self.evaluation_set, self.dialogues.eval_sets):
            if told := eval_set.repeats():
                yield told

    def evaluate(
        self, trainer: Trainer, eval_set: str, temperature: float, samples: int = 1
    ) -> list[TrajectoryGroup]:
        """Play this rank's share of an evaluation set with the trainer's learner.

        Args:
            trainer: The trainer, with the learner and the callbacks that are told of the progress.
            eval_set: Name of the evaluation set.
            temperature: Sampling temperature; 0 is greedy.
            samples: Trajectories per initial state. The first one is the same for any number.

        Raises:
            ConfigError: on all ranks, when no initial state, on any rank, leaves room in the
                context for a response.
        """
        chosen, learner = self.evaluation_set(eval_set), current_learner(trainer)
        callbacks = list(rollout_callbacks(trainer))
        share = chosen.group_seeds[rank() :: world_size()]
        rollout = replace(self.dialogues.rollout_on(eval_set), group_size=samples)
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
                lambda: collect_from_endpoint(
                    chosen.env,
                    share,
                    self.dialogues.evaluation_dialogue(learner, eval_set),
                    client,
                    rollout,
                    iteration=iteration,
                    sampling=sampling,
                    progress=progress,
                )
            )
        chat = self.dialogues.evaluation_chat(learner, eval_set)
        at_once = max(1, len(share) // samples)  # with the memory of one trajectory per state
        with learner.rollout_weights(self.dialogues.max_context):
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
        """Play this rank's share of an evaluation set with a baseline, each initial state once."""
        chosen, rollout = self.evaluation_set(eval_set), self.dialogues.rollout_on(eval_set)
        return [
            play_baseline(chosen.env, start.seed, start.group_id, rollout, baseline)
            for start in chosen.group_seeds[rank() :: world_size()]
        ]


class EvaluationLoader:
    """Loader of one evaluation set, which is played as a single batch.

    Within ``fit`` every initial state is played once, elsewhere ``evaluation.samples`` times.
    """

    def __init__(self, evaluator: Evaluator, trainer: Trainer, eval_set: str) -> None:
        self.evaluator, self.trainer, self.eval_set = evaluator, trainer, eval_set

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Evaluation]:
        config, is_training = self.evaluator.config, self.trainer.state.fn == TrainerFn.FITTING
        samples = 1 if is_training or not config.temperature else config.samples
        groups = self.evaluator.evaluate(self.trainer, self.eval_set, config.temperature, samples)
        yield Evaluation(self.eval_set, config.temperature, tuple(groups))
