"""Rollback of a collapsed run to its last healthy state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from callbacks.echo_trap_detector import EchoTrapDetector
from callbacks.variance_filter import VarianceFilter
from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.distributed.snapshot import Plain, restore_snapshot, take_snapshot
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.access import find_data_module, learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import all_callbacks, announce, find_callback
from ragen_pl.types import TrajectoryGroup


@dataclass(slots=True)
class _Snapshot:
    """The state that played one sound rollout."""

    iteration: int
    positions: dict[str, int]
    """The detector's positions after that rollout."""
    followed: int
    """Number of sound rollouts in a row after it."""
    state: Plain


class Rollback(RolloutCallback):
    """A rollback to the last healthy state at red, with lower learning rates from there on.

    | when | what happens |
    |---|---|
    | first RL rollout, before any update of the policy | snapshot, trusted |
    | every ``every_n_iterations`` while ``EchoTrapDetector`` finds it sound | snapshot, on trial |
    | ``min_age`` sound rollouts after a snapshot | it is trusted, older ones are dropped |
    | a rollout that is not sound | snapshots on trial are dropped: they led to it |
    | red ``patience`` times in a row | the trusted snapshot is restored, at most ``times`` times |

    Sound means green, or amber for a large approximate KL alone. The weights of policy and critic,
    the optimizer's moments and the module's other state are restored bit for bit; the detector's
    history is cut back to that point, and solutions that hindsight imitation found since then are
    forgotten. The learning rates of policy and critic are multiplied by
    ``lr_factor`` and ``filter.keep_fraction`` by ``filter_factor``, permanently. The collapsed
    rollout is discarded: its iteration ends without an update. The iteration count continues, so
    that initial states and sampling noise are new and the collapse is not repeated; the
    learning-rate schedule also continues. After ``times`` rollbacks, the detector stops the run as
    it does without this callback.

    Each rollback is announced in a line and listed under ``rollbacks`` in ``results.json``.
    Snapshots are kept in CPU memory and in every checkpoint, so that a resumed run returns to the
    same state: 1 + min_age / every_n_iterations of them, each as large as the trainable weights of
    policy and critic with their moments (with AdamW's 12 bytes a weight in float32).

    Args:
        times: Maximum number of rollbacks; 0 disables them, and no snapshot is kept.
        patience: Red iterations in a row before a rollback; must be below echo_trap.patience.
        lr_factor: Factor of the RL learning rates at each rollback; 1 leaves them.
        filter_factor: Factor of filter.keep_fraction at each rollback; 1 leaves it.
        every_n_iterations: Iterations between two snapshots.
        min_age: Sound iterations that must follow a snapshot before it is trusted: the state just
            before an alarm is often damaged already.
    """

    def __init__(
        self,
        times: int = 0,
        patience: int = 2,
        lr_factor: float = 0.5,
        filter_factor: float = 1.0,
        every_n_iterations: int = 5,
        min_age: int = 5,
    ) -> None:
        super().__init__()
        for key, value, least in (
            ("times", times, 0),
            ("patience", patience, 1),
            ("every_n_iterations", every_n_iterations, 1),
            ("min_age", min_age, 1),
        ):
            if value < least:
                raise ValueError(f"rollback.{key} is {value}; it must be at least {least}")
        for key, factor in (("lr_factor", lr_factor), ("filter_factor", filter_factor)):
            if not 0.0 < factor <= 1.0:
                raise ValueError(
                    f"rollback.{key} is {factor}; it must lie in (0, 1], and 1 changes nothing"
                )
        self.times, self.patience = times, patience
        self.lr_factor, self.filter_factor = lr_factor, filter_factor
        self.every_n_iterations, self.min_age = every_n_iterations, min_age
        self.events: list[dict[str, Any]] = []
        """One entry per rollback, as in ``results.json``."""
        self._snapshots: list[_Snapshot] = []
        """Snapshots from old to new; the first is trusted."""

    # --- the callbacks it works with ----------------------------------------------------------

    def _refuse_idle_keys(self) -> None:
        for key, parameter in inspect.signature(Rollback).parameters.items():
            value = getattr(self, key)
            if key != "times" and value != parameter.default:
                raise ValueError(
                    f"rollback.{key} is {value}, but rollback.times is 0: set rollback.times to 1 "
                    f"or more, or leave rollback.{key} out"
                )

    def check_run(self, trainer: Trainer, rollout: RolloutConfig) -> None:
        """Refuse a run in which a rollback could never happen.

        Raises:
            ValueError: if no detector precedes this callback, if the detector would stop the run
                first, or if there is no ``keep_fraction`` to tighten; without rollbacks, if another
                key is set.
        """
        if not self.times:
            self._refuse_idle_keys()
            return
        callbacks = all_callbacks(trainer)
        before = callbacks[: callbacks.index(self)]
        detectors = [c for c in before if isinstance(c, EchoTrapDetector)]
        if not detectors:
            raise ValueError(
                f"rollback.times is {self.times}, but no EchoTrapDetector is before Rollback "
                "in the list of callbacks: add one, whose alarm triggers the rollback"
            )
        patience = detectors[0].patience
        if detectors[0].stop and self.patience >= patience:
            raise ValueError(
                f"rollback.patience is {self.patience}, but echo_trap.patience is {patience}, so "
                "the run would be stopped first: choose a smaller rollback.patience"
            )
        chosen = find_callback(trainer, VarianceFilter)
        if self.filter_factor < 1.0 and (chosen is None or not chosen.has_keep_fraction):
            raise ValueError(
                f"rollback.filter_factor is {self.filter_factor}, but there is no VarianceFilter "
                "with a keep_fraction to tighten: give it one, or set rollback.filter_factor to 1"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the filter's configured share."""
        chosen = find_callback(trainer, VarianceFilter)
        if chosen is not None and self.filter_factor < 1.0:
            chosen.tighten(1.0)

    # --- during the run -----------------------------------------------------------------------

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Tighten the filter by all rollbacks so far, even if the run was resumed since then."""
        chosen = find_callback(trainer, VarianceFilter)
        if self.times and chosen is not None and self.filter_factor < 1.0:
            chosen.tighten(self.filter_factor ** len(self.events))

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Act on the detector's verdict on this rollout: take snapshots, or restore one."""
        if not self.times:
            return
        detector = find_callback(trainer, EchoTrapDetector)
        assert detector is not None, "checked by check_run"
        # The assessments are equal by construction, but ranks must never disagree on a rollback.
        if any(gather_objects(self._is_due(detector))):
            self._roll_back(trainer, module, detector)
        else:
            self._update_snapshots(trainer, module, detector)
        self.record({"collapse/rollbacks": len(self.events)})

    def _is_due(self, detector: EchoTrapDetector) -> bool:
        is_red = detector.red_in_a_row >= self.patience
        return is_red and bool(self._snapshots) and len(self.events) < self.times

    def _update_snapshots(
        self, trainer: Trainer, module: LightningModule, detector: EchoTrapDetector
    ) -> None:
        """Take and drop snapshots; the current weights are those that played this rollout."""
        if not detector.is_sound:
            self._snapshots = self._snapshots[:1]
            return
        if not self._snapshots:
            if self._policy_is_trained(module):
                self._take(trainer, module, detector)
            return
        if not detector.has_baseline:
            return
        for snapshot in self._snapshots:
            snapshot.followed += 1
        trusted = [i for i, s in enumerate(self._snapshots) if s.followed >= self.min_age]
        self._snapshots = self._snapshots[max(trusted, default=0) :]
        if self.iteration - self._snapshots[-1].iteration >= self.every_n_iterations:
            self._take(trainer, module, detector)

    def _policy_is_trained(self, module: LightningModule) -> bool:
        """Return whether this iteration updates the policy, and not only the critic."""
        starpo = learner(module)
        if starpo.hindsight_lr is not None:
            return True
        return self.iteration - starpo.rl_start >= starpo.critic_only_iterations

    def _take(self, trainer: Trainer, module: LightningModule, detector: EchoTrapDetector) -> None:
        state = take_snapshot(module, trainer.optimizers)
        self._snapshots.append(_Snapshot(self.iteration, detector.positions, 0, state))

    def _roll_back(
        self, trainer: Trainer, module: LightningModule, detector: EchoTrapDetector
    ) -> None:
        self._snapshots = self._snapshots[:1]
        (trusted,) = self._snapshots
        restore_snapshot(trusted.state, module, trainer.optimizers)
        data = find_data_module(trainer)
        if data is not None:
            data.forget_since(trusted.iteration)
        starpo = learner(module)
        starpo.lr_scale *= self.lr_factor
        reason = detector.assessment.reason
        detector.rewind(trusted.positions)
        self.discard = True
        event = {
            "iteration": self.iteration + 1,
            "restored": trusted.iteration + 1,
            "lr_scale": starpo.lr_scale,
            "reason": reason,
        }
        chosen = find_callback(trainer, VarianceFilter)
        if chosen is not None and self.filter_factor < 1.0:
            keep_fraction = chosen.tighten(self.filter_factor ** (len(self.events) + 1))
            event["keep_fraction"] = keep_fraction
        self.events.append(event)
        announce(trainer, self._describe(event))

    def _describe(self, event: Mapping[str, Any]) -> str:
        changes = [f"learning rates × {event['lr_scale']:g}"]
        if self.filter_factor < 1.0:
            changes.append(f"keep_fraction {event['keep_fraction']:g}")
        return (
            f"rollback {len(self.events)} of {self.times} at iteration {event['iteration']}: "
            f"restored the policy of iteration {event['restored']}, {', '.join(changes)}; "
            f"{event['reason']}"
        )

    # --- what is kept -------------------------------------------------------------------------

    def results(self) -> Mapping[str, Any]:
        """Return the rollbacks so far."""
        return {"rollbacks": self.events} if self.times else {}

    def state_dict(self) -> dict[str, Any]:
        """Save the snapshots and the rollbacks so far."""
        # Not asdict, which would copy every tensor once more.
        names = _Snapshot.__slots__
        kept = self._snapshots if self.times else []
        snapshots = [{name: getattr(s, name) for name in names} for s in kept]
        return {"events": self.events, "snapshots": snapshots}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the snapshots and the rollbacks so far."""
        self.events = list(state_dict["events"])
        self._snapshots = [_Snapshot(**snapshot) for snapshot in state_dict["snapshots"]]
