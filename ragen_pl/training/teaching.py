"""The warm start in a run: who is taught, the demonstrations of all environments, and questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer

from ragen_pl.distributed.collectives import all_or_none
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.demonstrations import (
    WarmStart,
    agreed_lessons,
    demonstrate,
    demonstration_batches,
    packed,
    right_answers,
)
from ragen_pl.rollout.hints import Hints
from ragen_pl.rollout.mixture import MixtureConfig
from ragen_pl.rollout.seeds import FIRST_DEMONSTRATION, SEEDS_PER_RUN
from ragen_pl.rollout.teachers import Lesson, LessonQuestion, Lessons
from ragen_pl.training.dialogues import Dialogues
from ragen_pl.training.learner import current_learner
from ragen_pl.training.trainer import announce, rollout_callbacks
from ragen_pl.types import Demonstration, DemonstrationSet


def taught_envs(warm_start: WarmStart, envs: Mapping[str, TextEnv], *, think: bool) -> list[str]:
    """Return the names of the environments that the teacher can teach; none without a warm
    start."""
    refused = _refusals(warm_start, envs, think=think)
    return [name for name in envs if name not in refused] if warm_start.iterations else []


def check_teacher(warm_start: WarmStart, envs: Mapping[str, TextEnv], *, think: bool) -> None:
    """Check that the teacher of a warm start can teach anything. Who does not train needs none.

    Raises:
        ValueError: if there is no environment that it can teach; the message has its reasons.
    """
    refused = _refusals(warm_start, envs, think=think)
    if refused and refused.keys() == envs.keys():
        raise ValueError(
            f"data.warm_start.iterations is {warm_start.iterations}, but "
            + "; ".join(dict.fromkeys(refused.values()))
            + ", or set it to 0"
        )


def _refusals(warm_start: WarmStart, envs: Mapping[str, TextEnv], *, think: bool) -> dict[str, str]:
    """Return why the teacher cannot teach environments, by name; empty without a warm start."""
    refused = {}
    for name, env in envs.items() if warm_start.iterations else ():
        try:
            warm_start.chosen_teacher.check(env, think=think)
        except ValueError as error:
            refused[name] = str(error)
    return refused


def warm_starts(
    config: WarmStart, names: Sequence[str], mixture: MixtureConfig
) -> dict[str, WarmStart]:
    """Return the warm start of each environment that is taught; in a mixture, with its share of the
    demonstrations and the difficulties that are named after it."""
    if "" in names:
        return dict.fromkeys(names, config)
    share = {name: mixture.share(name) for name in names}
    counts = {n: config.demonstrations * s / sum(share.values()) for n, s in share.items()}
    return {
        name: replace(
            config,
            demonstrations=max(1, round(count)),
            difficulties=tuple(
                each.removeprefix(f"{name}/")
                for each in config.difficulty_names
                if each.startswith(f"{name}/")
            ),
        )
        for name, count in counts.items()
    }


class Teaching:
    """The warm start of a run.

    Args:
        config: The warm start.
        warm_starts: That of each environment that is taught, by name.
        dialogues: The dialogues of the run, with its environments.
        hints: The hints of self-distillation; None without it.
        run_seed: Seed of the run.
    """

    def __init__(
        self,
        config: WarmStart,
        warm_starts: Mapping[str, WarmStart],
        dialogues: Dialogues,
        hints: Hints | None,
        run_seed: int,
    ) -> None:
        self.config, self.warm_starts, self.dialogues = config, warm_starts, dialogues
        self.hints, self.run_seed = hints, run_seed
        self._demonstrations: DemonstrationSet | None = None
        self._questions: tuple[LessonQuestion, ...] = ()

    @property
    def lessons_are_saved(self) -> bool:
        """Whether checkpoints within the warm start hold the demonstrations."""
        return self.config.iterations > 0 and self.config.teacher.lessons_are_saved

    def batches(self, trainer: Trainer) -> Iterator[Demonstration]:
        """Return this rank's optimizer batches of the learner's next iteration, one of the warm
        start; every rank must call it."""
        return demonstration_batches(
            self.demonstrations(trainer),
            self.config,
            iteration=current_learner(trainer).iteration,
            seed=self.run_seed,
            right_answers=self.ask_questions(trainer),
        )

    def ask_questions(self, trainer: Trainer) -> float | None:
        """Ask the teacher's questions and tell how many were answered right; None without any."""
        if not self._questions:
            return None
        learner = current_learner(trainer)
        max_context = self.dialogues.max_context
        with learner.rollout_weights(max_context):
            share = right_answers(self._questions, learner.generate, max_context)
        done, count = learner.iteration, len(self._questions)
        announce(
            trainer,
            f"warm start: {share:.1%} of {count} held-out answers right after {done} iterations",
        )
        return share

    def demonstrations(self, trainer: Trainer) -> DemonstrationSet:
        """Return the teacher's demonstrations, made once and kept."""
        if self._demonstrations is None:
            first_seed = self.run_seed * SEEDS_PER_RUN + FIRST_DEMONSTRATION
            chats = self.dialogues.chats(current_learner(trainer))
            given = [
                demonstrate(
                    self.dialogues.envs[name],
                    chats[name],
                    self.dialogues.rollout_in[name],
                    own,
                    first_seed=first_seed,
                    name=name,
                    report=partial(_report, trainer),
                    record=partial(_record, trainer, name),
                )
                for name, own in self.warm_starts.items()
            ]
            lessons = [lesson for each in given for lesson in each.lessons]
            # Together, so that no two demonstrations of a mixture have the same number.
            lessons += self._hinted_lessons(trainer, first_seed)
            self._demonstrations = packed(lessons)
            self._questions = tuple(question for each in given for question in each.questions)
        return self._demonstrations

    def _hinted_lessons(self, trainer: Trainer, first_seed: int) -> tuple[Lesson, ...]:
        """Return the demonstrations from which the policy learns what a hint is, the same on every
        rank."""
        if self.hints is None or not self.hints.config.lessons:
            return ()
        chats = self.dialogues.chats(current_learner(trainer))
        difficulties = {name: own.difficulty_names for name, own in self.warm_starts.items()}
        hints = self.hints
        own = all_or_none(lambda: Lessons(hints.lessons(chats, difficulties, first_seed), ""))
        lessons = agreed_lessons(own).lessons
        announce(trainer, f"warm start: {len(lessons)} demonstrations with hints")
        return lessons

    def forget(self) -> None:
        """Let go of the demonstrations and questions, which RL does not need. Who asks for them
        again has them made again."""
        self._demonstrations, self._questions = None, ()

    def state_dict(self, trainer: Trainer) -> dict[str, Any]:
        """Return the demonstrations and questions if they are saved, until the warm start is
        over."""
        is_warm = current_learner(trainer).iteration < self.config.iterations
        if not is_warm or not self.lessons_are_saved:
            return {}
        kept = self.demonstrations(trainer)
        return {
            "demonstrations": {each.name: getattr(kept, each.name) for each in fields(kept)},
            "questions": [(each.prefix_ids, each.answer_ids) for each in self._questions],
        }

    def load_state_dict(self, state: Mapping[str, Any], trainer: Trainer) -> None:
        """Restore what was saved."""
        self._demonstrations = saved_set = DemonstrationSet(**state["demonstrations"])
        self._questions = tuple(LessonQuestion(*each) for each in state.get("questions", ()))
        count = len(torch.unique(saved_set.demonstration_ids))
        announce(trainer, f"warm start: {count} demonstrations of the checkpoint")


def _report(trainer: Trainer, text: str) -> None:
    for callback in rollout_callbacks(trainer):
        callback.on_teaching_progress(trainer, trainer.lightning_module, text)


def _record(trainer: Trainer, env: str, metrics: Mapping[str, float]) -> None:
    prefix = f"{env}/" if env else ""
    named = {f"{prefix}{key}": value for key, value in metrics.items()}
    for callback in rollout_callbacks(trainer):
        callback.on_teaching_end(trainer, trainer.lightning_module, named)
