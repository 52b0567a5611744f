"""Trajectories as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from callbacks.echo_trap_detector import EchoTrapDetector
from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.report import trajectory_files as files
from ragen_pl.report.trajectory_record import (
    TRAINING,
    GroupSelection,
    IterationAlarm,
    Occasion,
    Source,
    TokenEstimates,
    record_line,
    trajectory_record,
)
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.rollout.packing import member_of
from ragen_pl.runtime.durable_files import write_lines
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.training.access import completed_iterations, data_module, learner, policy_name
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.run_folder import TRAJECTORIES, file_name_of
from ragen_pl.training.trainer import announce, find_callback, is_discarded, run_dir_of
from ragen_pl.types import Evaluation, Selection, TrainingBatch, TrajectoryGroup

_MEGABYTE = 1_000_000


class TrajectoryWriter(RolloutCallback):
    """Trajectories in ``trajectories/`` in the run folder, one JSON object per line.

    It keeps every evaluation (validations, tests, predictions, those of the closing table) and some
    groups of every n-th iteration's rollout, with the messages, tokens, states and rewards of every
    turn; of rollouts also advantages, log-prob gaps and the filter's decision.
    ``docs/trajectories.md`` describes files and fields.

    The groups are chosen over all ranks by what they show: the best mean return, the worst, the
    largest spread, a group that the filter dropped; further ones are spread evenly over the ranking
    by mean return. Files are written as a whole; one that cannot be written is reported, and the
    run goes on.

    Args:
        every_n_iterations: Iterations between two rollouts that are kept; 0 keeps none.
        groups: Groups kept of such a rollout; null for all.
        evaluations: Whether to keep evaluations; ``predict`` is always written.
        max_mb: Limit of the size of all files, in megabytes, without those of ``predict``. When it
            is exceeded, the oldest validations are thinned to their first 16 initial states, then
            the oldest rollouts and validations are removed, then the closing table's are thinned;
            the newest ones stay as they are.
    """

    def __init__(
        self,
        every_n_iterations: int = 10,
        groups: int | None = 4,
        evaluations: bool = True,
        max_mb: float = 200.0,
    ) -> None:
        super().__init__()
        if every_n_iterations < 0:
            raise ValueError(
                f"every_n_iterations is {every_n_iterations}; it must be 0 (never) or more"
            )
        if groups is not None and groups < 1:
            raise ValueError(
                f"groups is {groups}; it must be 1 or more, or null for all "
                "(every_n_iterations 0 keeps none)"
            )
        if not max_mb > 0:
            raise ValueError(f"max_mb is {max_mb}; it must be above 0 megabytes")
        self.every_n_iterations, self.groups = every_n_iterations, groups
        self.evaluations, self.max_mb = evaluations, max_mb
        self._pending: _ChosenGroups | None = None
        self._has_told_of_limit = self._has_told_of_error = False

    # --- rollouts ---------------------------------------------------------------------------

    def on_selection(
        self,
        trainer: Trainer,
        module: LightningModule,
        groups: list[TrajectoryGroup],
        selection: Selection,
    ) -> None:
        """Choose the groups to keep of an iteration that is due."""
        every = self.every_n_iterations
        self._pending = None
        if every and (self.iteration + 1) % every == 0:
            if is_discarded(trainer):
                selection = _nothing_of(selection)
            self._pending = _choose(groups, selection, self.groups, _alarm(trainer))

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        """Write the chosen groups with the learner's estimates."""
        if self._pending is not None:
            estimates = _estimates(batch, set(self._pending.selections))
            self._write_rollout(trainer, self._pending, estimates)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the chosen groups of a rollout that was not trained on."""
        super().on_train_epoch_end(trainer, pl_module)
        if self._pending is not None:
            self._write_rollout(trainer, self._pending, {})

    def _write_rollout(
        self,
        trainer: Trainer,
        chosen: _ChosenGroups,
        estimates: Mapping[tuple[int, int], TokenEstimates],
    ) -> None:
        self._pending = None
        data, number = data_module(trainer), self.iteration + 1
        occasion = Occasion(
            "rollout", number, TRAINING, temperature=data.rollout.temperature, alarm=chosen.alarm
        )
        lines = _Lines(data.dialogues.chat(learner(trainer.lightning_module)), occasion)
        for group in chosen.groups:
            lines.add(group, chosen.selections[group.group_id], estimates)
        self._write(trainer, files.rollout_file(number), lines)

    # --- evaluations ------------------------------------------------------------------------

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """Write an evaluation set during training."""
        is_wanted = self.evaluations and not trainer.sanity_checking
        if is_wanted and trainer.state.fn == TrainerFn.FITTING and isinstance(batch, Evaluation):
            iteration = completed_iterations(trainer, pl_module)
            name = files.evaluation_file(files.VALIDATION, batch.eval_set, iteration)
            occasion = _occasion("evaluation", iteration, TRAINING, batch, _alarm(trainer))
            self._write_evaluation(trainer, name, batch, occasion)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any, **__: Any
    ) -> None:
        """Write an evaluation set."""
        if isinstance(outputs, Evaluation):
            name = files.evaluation_file("predict", outputs.eval_set)
            is_of_run = trainer.ckpt_path is not None
            iteration = completed_iterations(trainer, pl_module) if is_of_run else None
            occasion = _occasion("predict", iteration, policy_name(trainer, pl_module), outputs)
            path = self._write_evaluation(trainer, name, outputs, occasion)
            announce(trainer, f"trajectories on {outputs.eval_set}: {path}")

    def on_evaluation_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        policy: str,
        evaluation: Evaluation,
        iterations: int | None,
    ) -> None:
        """Write an evaluation of the closing table, or of ``validate`` and ``test``."""
        if self.evaluations:
            run_dir, command = run_dir_of(trainer), trainer.state.fn
            who = file_name_of(policy, run_dir)
            name = files.evaluation_file(
                who if command in (None, TrainerFn.FITTING) else f"{command.value}-{who}",
                evaluation.eval_set,
                temperature=evaluation.temperature,
            )
            occasion = _occasion("evaluation", iterations, policy, evaluation)
            self._write_evaluation(trainer, name, evaluation, occasion)

    def _write_evaluation(
        self, trainer: Trainer, name: str, evaluation: Evaluation, occasion: Occasion
    ) -> Path:
        dialogues, module = data_module(trainer).dialogues, learner(trainer.lightning_module)
        lines = _Lines(dialogues.evaluation_dialogue(module, evaluation.eval_set), occasion)
        for group in evaluation.groups:
            lines.add(group)
        return self._write(trainer, name, lines)

    # --- files ------------------------------------------------------------------------------

    def _write(self, trainer: Trainer, name: str, lines: _Lines) -> Path:
        """Write the lines of all ranks to one file; every rank must call it."""
        path = run_dir_of(trainer) / TRAJECTORIES / name
        # An initial state that several ranks played counts once.
        everyone = {
            place: line for part in gather_objects(lines.by_place) for place, line in part.items()
        }
        if trainer.is_global_zero:
            try:
                write_lines(path, (everyone[place] for place in sorted(everyone)))
                self._limit_size(trainer, path)
            except OSError as error:
                self._tell_of_error(trainer, path, error)
        return path

    def _limit_size(self, trainer: Trainer, newest: Path) -> None:
        done = files.limit_size(newest.parent, int(self.max_mb * _MEGABYTE), newest)
        if done and not self._has_told_of_limit:
            self._has_told_of_limit = True
            announce(
                trainer,
                f"trajectories take more than trajectories.max_mb {self.max_mb:g}: from now on "
                f"the oldest ones are thinned ({done[0]}); a larger max_mb keeps more",
            )

    def _tell_of_error(self, trainer: Trainer, path: Path, error: OSError) -> None:
        record_fault(FaultKind.WRITE, f"{path.name} was not written: {error}")
        if not self._has_told_of_error:
            self._has_told_of_error = True
            announce(trainer, f"{path} cannot be changed ({error}); the run goes on without it")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what a longer, abandoned continuation of the run left behind."""
        folder = run_dir_of(trainer) / TRAJECTORIES
        if trainer.is_global_zero:
            try:
                files.remove_after(folder, learner(pl_module).iteration)
            except OSError as error:
                self._tell_of_error(trainer, folder, error)


def _occasion(
    source: Source,
    iteration: int | None,
    policy: str,
    played: Evaluation,
    alarm: IterationAlarm | None = None,
) -> Occasion:
    return Occasion(source, iteration, policy, played.eval_set, played.temperature, alarm)


def _alarm(trainer: Trainer) -> IterationAlarm | None:
    """Return the alarm of the latest rollout; None if none has been assessed."""
    detector = find_callback(trainer, EchoTrapDetector)
    if detector is None or not detector.positions:
        return None
    found = detector.assessed
    return IterationAlarm(found.level.name.lower(), found.signs)


class _Lines:
    """Lines of this rank's trajectories by group and member.

    Args:
        chat: The chat protocol.
        occasion: When and by whom.
    """

    def __init__(self, chat: Dialogue, occasion: Occasion) -> None:
        self.chat, self.occasion = chat, occasion
        self.by_place: dict[tuple[int, int], str] = {}

    def add(
        self,
        group: TrajectoryGroup,
        selection: GroupSelection | None = None,
        estimates: Mapping[tuple[int, int], TokenEstimates] | None = None,
    ) -> None:
        """Add the members of a group."""
        for trajectory in group.trajectories:
            place = group.group_id, trajectory.member
            found = None if estimates is None else estimates.get(place)
            record = trajectory_record(trajectory, self.chat, self.occasion, selection, found)
            self.by_place[place] = record_line(record)


# --- the choice of groups -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ChosenGroups:
    """This rank's groups that are kept of a rollout."""

    groups: list[TrajectoryGroup]
    selections: Mapping[int, GroupSelection]
    """By group id."""
    alarm: IterationAlarm | None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What a group is chosen by."""

    group_id: int
    mean_return: float
    spread: float
    """The largest return minus the smallest."""
    is_kept: bool
    """Whether the policy is trained on any member."""


def choose_groups(facts: Sequence[GroupFacts], count: int | None) -> dict[int, str]:
    """Choose groups that show a rollout's range; ties go to the lowest id.

    Args:
        facts: The groups of all ranks.
        count: Number of groups; None for all.

    Returns:
        What each chosen group stands for, by its id.
    """
    ranked = sorted(facts, key=lambda each: (-each.mean_return, each.group_id))
    count = len(ranked) if count is None else min(count, len(ranked))
    wide = sorted(facts, key=lambda each: (-each.spread, each.group_id))
    roles = (
        ("best return", ranked),
        ("worst return", ranked[::-1]),
        ("largest spread", wide),
        ("dropped", [each for each in wide if not each.is_kept]),
    )
    chosen: dict[int, str] = {}
    for role, candidates in roles:
        free = (each.group_id for each in candidates if each.group_id not in chosen)
        found = next(free, None)
        if found is not None and len(chosen) < count:
            chosen[found] = role
    rest = [each.group_id for each in ranked if each.group_id not in chosen]
    wanted = count - len(chosen)
    for place in range(wanted):
        chosen[rest[place * len(rest) // wanted]] = "spread over the ranking"
    return chosen


def _nothing_of(selection: Selection) -> Selection:
    """Return the selection of a rollout that is not learned from, whatever callbacks decided."""
    weights = tuple((0.0,) * len(each) for each in selection.weights)
    return Selection(weights, ("discarded: the run stops, or goes back",) * len(weights))


def _choose(
    groups: Sequence[TrajectoryGroup],
    selection: Selection,
    count: int | None,
    alarm: IterationAlarm | None,
) -> _ChosenGroups:
    """Return this rank's share of the chosen groups; every rank must call it."""
    own = [
        _facts(group, weights)
        for group, weights in zip(groups, selection.weights, strict=True)
        if group.trajectories
    ]
    chosen = choose_groups([facts for part in gather_objects(own) for facts in part], count)
    reasons = selection.reasons or ("",) * len(groups)
    return _ChosenGroups(
        [group for group in groups if group.group_id in chosen],
        {
            group.group_id: GroupSelection(weights, reason, chosen[group.group_id])
            for group, weights, reason in zip(groups, selection.weights, reasons, strict=True)
            if group.group_id in chosen
        },
        alarm,
    )


def _facts(group: TrajectoryGroup, weights: Sequence[float]) -> GroupFacts:
    returns = [trajectory.total_reward for trajectory in group.trajectories]
    return GroupFacts(
        group.group_id, sum(returns) / len(returns), max(returns) - min(returns), any(weights)
    )


def _estimates(batch: TrainingBatch, wanted: set[int]) -> dict[tuple[int, int], TokenEstimates]:
    """Return the estimates of the wanted groups' trained trajectories by (group, member).

    Args:
        batch: This rank's trajectories.
        wanted: Ids of groups.
    """
    rollout = batch.rollout
    ids = torch.tensor(sorted(wanted), device=rollout.group_ids.device, dtype=torch.long)
    rows = batch.rows(torch.isin(rollout.group_ids, ids) & rollout.kept).to("cpu")
    has_gaps = not batch.old_is_sampled
    gaps = rows.old_log_probs - rows.rollout.sampled_log_probs
    found: dict[tuple[int, int], TokenEstimates] = {}
    for row, mask in enumerate(rows.rollout.loss_mask):  # a trajectory's rows in their order
        group = int(rows.rollout.group_ids[row])
        member = member_of(int(rows.rollout.trajectory_ids[row]))
        before = found.get((group, member), TokenEstimates((), () if has_gaps else None))
        gaps_before = before.log_prob_gaps
        found[group, member] = TokenEstimates(
            before.advantages + _floats(rows.advantages[row][mask]),
            None if gaps_before is None else gaps_before + _floats(gaps[row][mask]),
        )
    return found


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
