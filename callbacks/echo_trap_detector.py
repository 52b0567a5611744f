"""Warn of the Echo Trap, and stop a run that has fallen into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.ops.echo_trap.assess import GREEN, Assessment, Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseRules
from ragen_pl.rollout.stats import GroupTable, RankMeans, trainable_trajectories
from ragen_pl.training.access import learner
from ragen_pl.training.callback import RolloutCallback, announce, may_stop
from ragen_pl.types import Phase, TrajectoryGroup

GRAD_NORM, APPROX_KL = "train/grad_norm_policy", "train/approx_kl"
UPDATES = "train/updates"
_ROUNDING = 1e-5
"""Nats that rounding alone can look like, where the trainer recomputes what the sampler said."""
_NO_VALID_TURN = (
    "no turn of the first RL collection follows the response format, so rewards do not depend on "
    "the policy's actions: start with imitation (data.warm_start.iterations), or allow longer "
    "responses (data.rollout.max_response_tokens)"
)


class EchoTrapDetector(RolloutCallback):
    """Grade every collection green, amber or red by RAGEN's signs of collapse (§4, Echo Trap).

    Watches the in-group std of returns, the share of groups without spread, token entropy, valid
    format, response length, the policy's gradient norm, success, and returns pinned at the format
    penalty, all unfiltered, smoothed and against this run's own beginning, and how far updates move
    the policy. A policy that grows sure because it has become good is not alarming. Warm-start
    iterations do not count. A first collection without one valid turn is said at once, though there
    is nothing to fall from.

    | level | meaning | what happens |
    |---|---|---|
    | green | nothing, or one sign alone | – |
    | amber | long steps, early signs together, or success wears off beside a sign | it is said |
    | red | success lost, no valid turn left, or variety gone for nothing | ``patience`` stops |

    ``docs/echo_trap.md`` explains every rule, ``ragen_pl/ops/echo_trap/assess.py`` holds them, and
    ``Rollback`` leads a run back from red.

    Args:
        baseline_iterations: First RL iterations, which say what is usual. Until they are complete
            half of what there is must do, and slow starts are not judged.
        patience: Red iterations in a row that stop the run, once ``trainer.min_epochs`` is reached.
        stop: Whether to stop at all; false only warns.
        rules: The thresholds.
    """

    def __init__(
        self,
        baseline_iterations: int = 10,
        patience: int = 5,
        stop: bool = True,
        rules: CollapseRules = CollapseRules(),  # noqa: B008 (frozen, and shown as the default)
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
        self.rules = rules
        self.assessment = GREEN
        """On the latest collection."""
        self.red_in_a_row = 0
        self._played: list[TrajectoryGroup] = []
        self._history: list[Indicators] = []
        self._grad_norm: float | None = None
        self._approx_kl: float | None = None

    @property
    def level(self) -> Level:
        """Of the latest collection."""
        return self.assessment.level

    @property
    def position(self) -> int:
        """How many collections the history holds."""
        return len(self._history)

    @property
    def has_baseline(self) -> bool:
        """Whether the latest collection was judged; green means nothing before."""
        return len(self._history) > self.baseline_iterations

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with the policy itself: long steps only threaten it."""
        return self.level is Level.GREEN or self.assessment.forewarns

    def rewind(self, position: int) -> None:
        """Forget what came after the first ``position`` collections: the policy is that of then."""
        del self._history[position:]
        self.red_in_a_row, self._grad_norm, self._approx_kl = 0, None, None
        self.assessment = GREEN

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Take in all that was played: dynamic sampling keeps what has spread, and would hide that
        little has."""
        self._played += groups

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Judge the rollout; every rank reaches the same verdict."""
        played, self._played = self._played, []
        indicators = measure(played, self._grad_norm, self._approx_kl)
        if indicators is None:  # the environment failed everywhere: no information on the policy
            return
        self._history.append(indicators)
        if len(self._history) == 1 and indicators.valid_format == 0.0:
            announce(trainer, _NO_VALID_TURN)
        new = assess(self._history, self.baseline_iterations, self.rules)
        self.record({f"collapse/{name}": value for name, value in new.ratios.items()})
        self.record({"collapse/level": float(new.level)})
        old, self.assessment = self.assessment, new
        self.red_in_a_row = self.red_in_a_row + 1 if new.level is Level.RED else 0
        if self.stop and self.red_in_a_row >= self.patience:
            self._stop_if_allowed(trainer, new.reason)
        elif (new.level, not new.forewarns) > (old.level, not old.forewarns):
            name = new.level.name.lower()
            announce(trainer, f"echo trap {name} (iteration {self.iteration + 1}): {new.reason}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what the update was like for the next verdict, which comes before the next one. What
        was not measured is absent."""
        super().on_train_epoch_end(trainer, pl_module)
        is_rl = learner(pl_module).phase == Phase.RL
        metrics = trainer.callback_metrics if is_rl else {}
        norm, approx_kl = (metrics.get(name) for name in (GRAD_NORM, APPROX_KL))
        self._grad_norm = None if norm is None else float(norm)
        # A single update starts at the policy that sampled, so its own KL is zero.
        is_known = metrics.get(UPDATES, 0) > 1 and approx_kl is not None and approx_kl > _ROUNDING
        self._approx_kl = float(approx_kl) if is_known and approx_kl is not None else None

    def _stop_if_allowed(self, trainer: Trainer, reason: str) -> None:
        """Stop before the update; in the very first collection nobody else would say why. Where the
        trainer must go on the run does, and is stopped later if it is red then."""
        if not may_stop(trainer):
            if self.red_in_a_row == self.patience:
                announce(
                    trainer,
                    f"echo trap: red for {self.patience} iterations in a row, but trainer."
                    "min_epochs or min_steps is not reached: the run continues until then",
                )
            return
        self.reason = f"echo trap: red for {self.patience} iterations in a row: {reason}"
        trainer.should_stop = True
        announce(
            trainer,
            f"stopping at iteration {self.iteration + 1}: {self.reason}. Try a lower learning "
            "rate or a smaller keep_fraction; echo_trap.stop false only warns.",
        )

    def state_dict(self) -> dict[str, Any]:
        """Save the history as plain numbers; after a stop patience begins anew."""
        return {
            "history": [list(astuple(indicators)) for indicators in self._history],
            "red_in_a_row": 0 if self.reason else self.red_in_a_row,
            "grad_norm": self._grad_norm,
            "approx_kl": self._approx_kl,
            "level": int(self.level),
            "forewarns": self.assessment.forewarns,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the history; a run resumed after a stop gets its patience back."""
        self._history = [Indicators(*values) for values in state_dict["history"]]
        self.red_in_a_row = int(state_dict["red_in_a_row"])
        self._grad_norm = state_dict["grad_norm"]
        self._approx_kl = state_dict["approx_kl"]
        level, forewarns = Level(state_dict["level"]), state_dict["forewarns"]
        self.assessment = Assessment(level, "", {}, forewarns)


def measure(
    groups: Sequence[TrajectoryGroup], grad_norm: float | None, approx_kl: float | None
) -> Indicators | None:
    """Measure a collection over all ranks, after an update; None where no trajectory survived."""
    averages, table = RankMeans(), GroupTable.gather(groups)
    std = table.std[table.std.isfinite()]
    for trajectory in trainable_trajectories(groups):
        is_penalty = not trajectory.success and not any(turn.is_valid for turn in trajectory.turns)
        averages.add("penalty_share", float(is_penalty))
        averages.add("success", float(trajectory.success))
        averages.add("mean_return", trajectory.total_reward)
        for turn in trajectory.turns:
            entropies = turn.completion.entropy_estimates
            averages.add("entropy", sum(entropies), len(entropies))
            averages.add("response_length", len(entropies))
            averages.add("valid_format", float(turn.is_valid))
    for name, value in (("grad_norm", grad_norm), ("approx_kl", approx_kl)):
        if value is not None and math.isfinite(value):
            averages.add(name, value)
    means = averages.means()
    if "success" not in means:
        return None
    return Indicators(
        in_group_std=float(std.mean()) if len(std) else 0.0,
        zero_std_fraction=float((std == 0).double().mean()) if len(std) else 0.0,
        entropy=means["entropy"],
        valid_format=means["valid_format"],
        penalty_share=means["penalty_share"],
        success=means["success"],
        mean_return=means["mean_return"],
        grad_norm=means.get("grad_norm"),
        response_length=means["response_length"],
        approx_kl=means.get("approx_kl"),
    )
