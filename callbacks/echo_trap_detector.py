"""The Echo Trap alarm of a run: warnings, and a stop after a collapse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from callbacks.policy_change import UPDATE_KL, UPDATES, PolicyChange
from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.ops.echo_trap.assess import GREEN, Assessment, Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.rollout.mixture import groups_by_env
from ragen_pl.rollout.rank_means import RankMeans
from ragen_pl.training.access import learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import all_callbacks, announce, may_stop
from ragen_pl.types import (
    FormatFault,
    Phase,
    Trajectory,
    TrajectoryGroup,
    trainable_trajectories,
)

GRAD_NORM, APPROX_KL = "train/grad_norm_policy", "train/approx_kl"
_ROUNDING = 1e-5
"""KL, in nats, that rounding alone can cause when the trainer recomputes log-probs."""
_TEACH_FORMAT = (
    "start with imitation (data.warm_start.iterations; its teacher is the environment's "
    "expert_turn, or another one of docs/teachers.md), or allow longer responses "
    "(data.rollout.max_response_tokens)"
)
_NO_VALID_TURN = (
    "no turn of the first RL collection follows the response format ({faults}), so rewards do not "
    f"depend on the policy's actions: {_TEACH_FORMAT}"
)


class EchoTrapDetector(RolloutCallback):
    """An alarm that grades every rollout green, amber or red by RAGEN's signs of collapse (§4).

    It watches the in-group std of returns, the share of groups with zero std, token entropy, valid
    format, response length, the policy's gradient norm, success, and returns at the format
    penalty's floor, all unfiltered, smoothed and relative to the beginning of the run, and the KL
    of updates: the approximate KL of several, or what ``PolicyChange`` measured of a single one.
    Under a curriculum they are those of the environment's own mix of
    starts (``TrajectoryGroup.weight``). A policy that becomes certain because it has become good
    raises no alarm. Warm-start iterations do not count. A first rollout without a single valid turn
    is reported immediately, although nothing has fallen yet. In a mixture every environment has an
    alarm of its own, and the run has the worst one's level.

    | level | meaning | what happens |
    |---|---|---|
    | green | nothing, or a single sign | – |
    | amber | large KL, several early signs, or success falls together with a sign | a message |
    | red | success lost, no valid turn left, or in-group std lost without a gain | a stop |

    ``docs/echo_trap.md`` explains the levels, ``ragen_pl/ops/echo_trap/assess.py`` computes them,
    and ``Rollback`` restores an earlier policy after red.

    Args:
        baseline_iterations: Number of first RL iterations that define the usual values. Until they
            are complete, the first half of the history does, and a slow start raises no alarm.
        patience: Red iterations in a row after which the run stops, once ``trainer.min_epochs`` is
            reached.
        stop: Whether to stop at all; false only warns.
        thresholds: The thresholds of amber and red.
    """

    def __init__(
        self,
        baseline_iterations: int = 10,
        patience: int = 5,
        stop: bool = True,
        thresholds: CollapseThresholds = CollapseThresholds(),  # noqa: B008 (frozen; shown in help)
    ) -> None:
        super().__init__()
        for key, value, least in (
            ("baseline_iterations", baseline_iterations, 3),
            ("patience", patience, 1),
        ):
            if value < least:
                raise ValueError(f"{key} is {value}; it must be at least {least}")
        self.baseline_iterations = baseline_iterations
        self.patience = patience
        self.stop = stop
        self.thresholds = thresholds
        self.assessment = GREEN
        """The assessment of the latest rollout; green after its policy was replaced."""
        self.assessed = GREEN
        """The assessment of the latest rollout as it was played."""
        self.red_in_a_row = 0
        self._collected: list[TrajectoryGroup] = []
        self._histories: dict[str, list[Indicators]] = {}
        """The rollouts so far by environment; ``""`` without a mixture."""
        self._grad_norm: float | None = None
        self._approx_kl: float | None = None
        self._update_kl: float | None = None
        self._raised: list[dict[str, Any]] = []
        """Iteration, level and reason of every rollout that was not green."""

    @property
    def level(self) -> Level:
        """The level of the latest rollout."""
        return self.assessment.level

    @property
    def positions(self) -> dict[str, int]:
        """The number of rollouts in each environment's history; an environment of a mixture that
        lost a whole rollout has fewer than others."""
        return {name: len(history) for name, history in self._histories.items()}

    @property
    def has_baseline(self) -> bool:
        """Whether the baseline is complete; until then green means little."""
        return max(self.positions.values(), default=0) > self.baseline_iterations

    @property
    def is_sound(self) -> bool:
        """Whether the policy itself is healthy: a large KL is only a warning."""
        return self.level is Level.GREEN or self.assessment.forewarns

    def rewind(self, positions: Mapping[str, int]) -> None:
        """Keep only each environment's first rollouts, those up to the state that was restored."""
        for name, history in self._histories.items():
            del history[positions.get(name, 0) :]
        self.red_in_a_row, self._grad_norm = 0, None
        self._approx_kl = self._update_kl = None
        self.assessment = GREEN

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Drop the groups of a rollout that was interrupted."""
        self._collected = []

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Keep every collected group: dynamic sampling drops groups with zero std, which would hide
        how many there are."""
        self._collected += groups

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Assess the rollout; every rank gets the same result."""
        collected, self._collected = self._collected, []
        found = self._assess(trainer, collected)
        if found is None:  # every environment raised: no evidence about the policy
            return
        self.record({"collapse/level": float(found.level)})
        before, self.assessment, self.assessed = self.assessment, found, found
        if found.level is not Level.GREEN:
            name = found.level.name.lower()
            entry = {"iteration": self.iteration + 1, "level": name, "reason": found.reason}
            self._raised.append(entry)
        self.red_in_a_row = self.red_in_a_row + 1 if found.level is Level.RED else 0
        if self.stop and self.red_in_a_row >= self.patience:
            self._stop_if_allowed(trainer, found)
        elif (found.level, not found.forewarns) > (before.level, not before.forewarns):
            name = found.level.name.lower()
            announce(trainer, f"echo trap {name} (iteration {self.iteration + 1}): {found.reason}")

    def _assess(self, trainer: Trainer, groups: Sequence[TrajectoryGroup]) -> Assessment | None:
        """Assess each environment and return the worst assessment; None without a trajectory."""
        by_env = groups_by_env(groups)
        names = sorted({name for part in gather_objects(list(by_env)) for name in part})
        found: list[Assessment] = []
        for name in names:
            indicators = measure(
                by_env.get(name, []), self._grad_norm, self._approx_kl, self._update_kl
            )
            if indicators is None:
                continue
            history = self._histories.setdefault(name, [])
            history.append(indicators)
            if len(history) == 1 and indicators.valid_format == 0.0:
                told = _NO_VALID_TURN.format(faults=_faults_told(by_env.get(name, [])))
                announce(trainer, f"{name}: {told}" if name else told)
            own = assess(history, self.baseline_iterations, self.thresholds)
            place = f"collapse/{name}" if name else "collapse"
            self.record({f"{place}/{key}": value for key, value in own.ratios.items()})
            if name:
                self.record({f"{place}/level": float(own.level)})
                own = replace(own, reason=f"{name}: {own.reason}" if own.reason else "")
            found.append(own)
        return max(found, key=lambda each: (each.level, not each.forewarns), default=None)

    def check_run(self, trainer: Trainer, rollout: RolloutConfig) -> None:
        """Refuse a run in which the KL of an update would be measured too late to be judged.

        Raises:
            ValueError: if ``PolicyChange`` comes after this callback.
        """
        super().check_run(trainer, rollout)
        callbacks = all_callbacks(trainer)
        after = callbacks[callbacks.index(self) :]
        if any(isinstance(each, PolicyChange) for each in after):
            raise ValueError(
                "PolicyChange comes after EchoTrapDetector, which would never see train/update_kl: "
                "list it before"
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the update's metrics for the next assessment, which precedes the next update.
        Metrics that were not measured are absent."""
        super().on_train_epoch_end(trainer, pl_module)
        is_rl = learner(pl_module).phase == Phase.RL
        metrics = trainer.callback_metrics if is_rl else {}
        norm, updates = metrics.get(GRAD_NORM), float(metrics.get(UPDATES, 0))
        self._grad_norm = None if norm is None else float(norm)
        # The approximate KL of a single update says nothing: it is measured before the only step.
        self._approx_kl = _above_rounding(metrics.get(APPROX_KL)) if updates > 1 else None
        self._update_kl = _above_rounding(metrics.get(UPDATE_KL)) if updates == 1 else None

    def _stop_if_allowed(self, trainer: Trainer, found: Assessment) -> None:
        """Stop before the update, with the reason. Until the trainer's minimum is reached the run
        goes on, and stops later if it is red then."""
        if not may_stop(trainer):
            if self.red_in_a_row == self.patience:
                announce(
                    trainer,
                    f"echo trap: red for {self.patience} iterations in a row, but trainer."
                    "min_epochs or min_steps is not reached: the run continues until then",
                )
            return
        self.reason = f"echo trap: red for {self.patience} iterations in a row: {found.reason}"
        trainer.should_stop = True
        remedy = (
            f"To teach the format, {_TEACH_FORMAT}"
            if found.never_spoke
            else "Try a lower learning rate or a smaller keep_fraction"
        )
        announce(
            trainer,
            f"stopping at iteration {self.iteration + 1}: {self.reason}. {remedy}; "
            "echo_trap.stop false only warns.",
        )

    def results(self) -> dict[str, Any]:
        """Return when the alarm was raised, and why."""
        return {"alarm": self._raised}

    def state_dict(self) -> dict[str, Any]:
        """Save the history as plain numbers; after a stop, red iterations count from 0 again."""
        return {
            "history": _plain(self._histories.get("", [])),
            "histories": {name: _plain(each) for name, each in self._histories.items() if name},
            "red_in_a_row": 0 if self.reason else self.red_in_a_row,
            "grad_norm": self._grad_norm,
            "approx_kl": self._approx_kl,
            "update_kl": self._update_kl,
            "level": int(self.level),
            "forewarns": self.assessment.forewarns,
            "raised": list(self._raised),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the history; in a run resumed after a stop, red iterations count from 0."""
        saved = {"": state_dict["history"], **state_dict.get("histories", {})}
        self._histories = {
            name: [Indicators(*values) for values in rows] for name, rows in saved.items() if rows
        }
        self.red_in_a_row = int(state_dict["red_in_a_row"])
        self._grad_norm = state_dict["grad_norm"]
        self._approx_kl = state_dict.get("approx_kl")
        self._update_kl = state_dict.get("update_kl")
        forewarns = state_dict.get("forewarns", False)
        self._raised = list(state_dict.get("raised", ()))
        self.assessment = Assessment(Level(state_dict["level"]), "", {}, forewarns)
        self.assessed = self.assessment


def _plain(history: Sequence[Indicators]) -> list[list[Any]]:
    return [list(astuple(indicators)) for indicators in history]


def _above_rounding(kl: Tensor | float | None) -> float | None:
    return float(kl) if kl is not None and kl > _ROUNDING else None


def measure(
    groups: Sequence[TrajectoryGroup],
    grad_norm: float | None,
    approx_kl: float | None,
    update_kl: float | None = None,
) -> Indicators | None:
    """Measure a rollout over all ranks; None without a trainable trajectory.

    Groups have their weights, so that under a curriculum the indicators describe the policy on the
    environment's own mix of starts; a curriculum that makes starts harder would else look like a
    collapse.

    Args:
        groups: This rank's groups.
        grad_norm: The policy's gradient norm in the preceding update, if known.
        approx_kl: The approximate KL of the preceding updates, if known.
        update_kl: The KL that the preceding iteration's only update made, if known.
    """
    averages, table = RankMeans(), GroupTable.gather(groups)
    for group in groups:
        for trajectory in trainable_trajectories([group]):
            _add_trajectory(averages, trajectory, group.weight)
    updates = (("grad_norm", grad_norm), ("approx_kl", approx_kl), ("update_kl", update_kl))
    for name, value in updates:
        if value is not None and math.isfinite(value):
            averages.add(name, value)
    means = averages.means()
    if "success" not in means:
        return None
    return Indicators(
        in_group_std=_group_mean(table, table.std),
        zero_std_fraction=_group_mean(table, (table.std == 0).double()),
        entropy=means["entropy"],
        valid_format=means["valid_format"],
        penalty_share=means["penalty_share"],
        success=means["success"],
        mean_return=means["mean_return"],
        grad_norm=means.get("grad_norm"),
        response_length=means["response_length"],
        approx_kl=means.get("approx_kl"),
        update_kl=means.get("update_kl"),
    )


def _faults_told(groups: Sequence[TrajectoryGroup]) -> str:
    """Return why turns do not follow the format, with shares over all ranks, most frequent first;
    every rank must call it."""
    own = Counter(t.format_fault for each in trainable_trajectories(groups) for t in each.turns)
    found = sum(gather_objects(own), Counter[FormatFault | None]())
    shares = ((fault, count / found.total()) for fault, count in found.most_common())
    return ", ".join(f"{share:.0%} {fault.told}" for fault, share in shares if fault is not None)


def _add_trajectory(averages: RankMeans, trajectory: Trajectory, weight: float) -> None:
    is_penalty = not trajectory.success and not any(turn.is_valid for turn in trajectory.turns)
    averages.add("penalty_share", float(is_penalty), weight=weight)
    averages.add("success", float(trajectory.success), weight=weight)
    averages.add("mean_return", trajectory.total_reward, weight=weight)
    for turn in trajectory.turns:
        entropies = turn.completion.entropy_estimates
        averages.add("entropy", sum(entropies), len(entropies), weight=weight)
        averages.add("response_length", len(entropies), weight=weight)
        averages.add("valid_format", float(turn.is_valid), weight=weight)


def _group_mean(table: GroupTable, values: Tensor) -> float:
    """Return the weighted mean over the groups with a std; 0 if there are none."""
    has_std = table.std.isfinite()
    weights = table.weights[has_std]
    return float((weights * values[has_std]).sum() / weights.sum()) if has_std.any() else 0.0
