"""``results.json``: what the run did, and how good its policies are."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.errors import ConfigError
from ragen_pl.report.tables import Validation, format_json, format_results
from ragen_pl.rollout.actors import Actor
from ragen_pl.rollout.baselines import BASELINES
from ragen_pl.runtime.durable_files import write_text
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.runtime.user_faults import how_it_ends, is_own_end
from ragen_pl.training.access import data_module, learner
from ragen_pl.training.callback import RESERVED, RolloutCallback
from ragen_pl.training.evaluation.generalization import training_gap
from ragen_pl.training.evaluation.results import PolicyResult, readable_evaluations
from ragen_pl.training.evaluation.scored_policies import played_by_baseline, played_by_policy, score
from ragen_pl.training.failed_ranks import reason_of_lost_rank
from ragen_pl.training.run_folder import FINAL, RESULTS, UNTRAINED, read_results
from ragen_pl.training.trainer import (
    ITERATION_PREFIXES,
    all_callbacks,
    announce,
    is_done,
    rollout_callbacks,
    run_dir_of,
)
from ragen_pl.types import Phase, TrajectoryGroup


class Results(RolloutCallback):
    """Evaluations of a run's policies on every evaluation set, kept in ``results.json``.

    It evaluates random moves, the environment's expert, and the untrained, the warm-started and the
    final policy. Each policy plays every set at the first temperature; the warm-started and the
    final one play the first set at the other temperatures, too. Without a warm start, the untrained
    policy takes the warm-started one's place. The file is replaced atomically during the run and at
    its end, however it ends; a resumed run keeps its entries. A run that is extended keeps its
    final scores until its new end. If a run ends without final scores, the table shows its latest
    validation.

    Args:
        temperatures: Sampling temperatures of the evaluations, 0 for greedy; the first one is
            reported first (the paper's is 0.5).
        write_every: Iterations between two writes of the file.
    """

    def __init__(
        self, temperatures: tuple[float, ...] = (0.5, 1.0, 0.0), write_every: int = 1
    ) -> None:
        super().__init__()
        if not temperatures or min(temperatures) < 0:
            raise ValueError(
                f"temperatures is {list(temperatures)}; give at least one, each 0 (greedy) or more"
            )
        if write_every < 1:
            raise ValueError(f"write_every is {write_every}; it must be at least 1 iteration")
        self.temperatures = tuple(temperatures)
        self.write_every = write_every
        self.evaluations: list[PolicyResult] = []
        self._history: list[dict[str, Any]] = []
        self._earlier: dict[str, Tensor] = {}
        """The metrics of earlier iterations, as Lightning kept them."""
        self._counters = Counters()
        self._validation: Validation | None = None
        self._validated = False
        self._earlier_final: list[PolicyResult] = []
        """The final scores in the run's folder, which may be newer than its checkpoint."""
        self._status, self._reason = "running", ""
        self._process_start = self._rollout_start = time.monotonic()
        self._has_started = False

    # --- during the run ---------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the clock."""
        if stage == "fit":
            self._status, self._reason, self._has_started = "running", "", False
            self._process_start = time.monotonic()

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Start to time the rollout."""
        self._has_started = True
        self._rollout_start = time.monotonic()

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Count what all ranks collected, including what dynamic sampling discards."""
        trajectories = [t for group in groups for t in group.trajectories]
        tokens = sum(trajectory.num_sampled_tokens for trajectory in trajectories)
        for count, sampled in gather_objects((len(trajectories), tokens)):
            self._counters.trajectories += count
            self._counters.sampled_tokens += sampled
        now = time.monotonic()
        self._counters.rollout_seconds += now - self._rollout_start
        self._rollout_start = now  # for a further collection, with dynamic sampling

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the baselines and the untrained policy, once, before the first update."""
        self._has_started = True
        done = {entry.policy for entry in self.evaluations}
        data = data_module(trainer)
        self._warn_of_changed_sets(trainer)
        for baseline in BASELINES:
            if baseline.name not in done:
                self._evaluate_baseline(trainer, pl_module, baseline)
        if UNTRAINED not in done and trainer.global_step == 0:
            in_full = data.warm_start.iterations == 0
            self.evaluations += self._evaluate(trainer, pl_module, UNTRAINED, in_full=in_full)
        self._write(trainer)

    def _warn_of_changed_sets(self, trainer: Trainer) -> None:
        """Name the evaluation sets whose starts are others than those of the scores so far."""
        data = data_module(trainer)
        for name in data.eval_sets:
            now = data.evaluator.evaluation_set(name).fingerprint
            scored = [each for each in self.evaluations if each.eval_set == name]
            other = next((each.fingerprint for each in scored if each.fingerprint != now), None)
            if other is not None:
                announce(
                    trainer,
                    f"warning: data.eval_sets.{name} has other starts ({now}) than its scores so "
                    f"far ({other}): scores before and after this resume cannot be compared; give "
                    "the new set another name",
                )

    def on_already_finished(self, trainer: Trainer, module: LightningModule) -> None:
        """Evaluate the final policy of a run whose final evaluation was interrupted."""
        self._has_started = True
        self._finish(trainer, module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that there are new scores."""
        self._validated = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note which metrics are known already."""
        self._earlier = dict(trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the iteration's metrics; evaluate when the warm start ends."""
        for callback in rollout_callbacks(trainer):  # also those whose own hook is yet to come
            callback.log_recorded(trainer)
        self._counters.iterations = trainer.current_epoch + 1
        self._record_metrics(trainer, learner(pl_module).phase)
        self._record_validation(trainer)
        if self._counters.iterations == data_module(trainer).warm_start.iterations:
            self.evaluations += self._evaluate(trainer, pl_module, "warm-started", in_full=True)
        if self._counters.iterations % self.write_every == 0:
            self._write(trainer)

    def _record_metrics(self, trainer: Trainer, phase: str) -> None:
        row: dict[str, Any] = {"iteration": self._counters.iterations, "phase": str(phase)}
        for name, value in trainer.callback_metrics.items():
            # The imitation loss must not be repeated after the warm start.
            is_stale = phase == Phase.RL and name.startswith("train/imitation")
            if not name.startswith(ITERATION_PREFIXES):  # Lightning keeps its last value
                is_stale = self._earlier.get(name) is value or name in RESERVED
            if not is_stale and math.isfinite(float(value)):
                row[name] = float(f"{float(value):.5g}")
        self._history.append(row)

    def _record_validation(self, trainer: Trainer) -> None:
        if not self._validated:
            return
        self._validated = False
        data, metrics = data_module(trainer), trainer.callback_metrics
        success: dict[str, tuple[float, float, float]] = {}
        for eval_set in data.eval_sets:
            names = [
                f"val/{eval_set}/{name}" for name in ("success", "success_low", "success_high")
            ]
            if all(name in metrics for name in names):
                mean, low, high = (float(metrics[name]) for name in names)
                success[eval_set] = mean, low, high
        if success:
            iterations, temperature = self._counters.iterations, data.evaluation.temperature
            self._validation = Validation(iterations, temperature, success)

    # --- evaluation -------------------------------------------------------------------------

    def _evaluate_baseline(
        self, trainer: Trainer, module: LightningModule, baseline: Actor
    ) -> None:
        """Evaluate an actor that needs no model on every evaluation set that it can play."""
        for eval_set in data_module(trainer).eval_sets:
            played = played_by_baseline(trainer, module, eval_set, baseline)
            if played is not None:
                self.evaluations += score(trainer, module, baseline.name, played, None)

    def _evaluate(
        self, trainer: Trainer, module: LightningModule, policy: str, *, in_full: bool
    ) -> list[PolicyResult]:
        """Evaluate the current weights on every evaluation set at the first temperature, and if
        ``in_full``, on the first evaluation set at all temperatures.
        """
        results = list[PolicyResult]()
        for index, eval_set in enumerate(data_module(trainer).eval_sets):
            for temperature in (
                self.temperatures if in_full and index == 0 else self.temperatures[:1]
            ):
                played = played_by_policy(
                    trainer, module, eval_set, temperature, f"{policy} on {eval_set}"
                )
                results += score(trainer, module, policy, played, self._counters.iterations)
        return results

    def _evaluate_final(self, trainer: Trainer, module: LightningModule) -> None:
        """Evaluate the final policy, or copy the scores if the same weights were evaluated before.

        All its scores replace those of an earlier end at once.
        """
        warm_iterations = data_module(trainer).warm_start.iterations
        warm_started = [entry for entry in self.evaluations if entry.policy == "warm-started"]
        if warm_started and self._counters.iterations == warm_iterations:
            self._replace_final([replace(entry, policy=FINAL) for entry in warm_started])
        else:
            self._replace_final(self._evaluate(trainer, module, FINAL, in_full=True))

    def _log_final(self, trainer: Trainer) -> None:
        """Log the final policy's success at the first temperature, for comparisons of runs."""
        final = [entry for entry in self.evaluations if entry.policy == FINAL]
        metrics = {
            f"final/{entry.eval_set}/success": entry.result.success
            for entry in final
            if entry.temperature == self.temperatures[0]
        }
        for logger in trainer.loggers if metrics else ():
            logger.log_metrics(metrics, step=self._counters.iterations)

    def _replace_final(self, final: list[PolicyResult]) -> None:
        """Put the final policy's results in place of earlier ones."""
        self.evaluations = [entry for entry in self.evaluations if entry.policy != FINAL] + final

    # --- the end ----------------------------------------------------------------------------

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the final policy and report."""
        self._finish(trainer, pl_module)

    def _finish(self, trainer: Trainer, module: LightningModule) -> None:
        self._evaluate_final(trainer, module)
        self._log_final(trainer)
        self._report(trainer, *_end_status(trainer, self._counters.iterations))

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Report what is known; nothing may be gathered here, as other ranks may have exited."""
        if isinstance(exception, SystemExit) and not is_own_end(exception):
            self._report(trainer, "failed", how_it_ends(exception))
        elif isinstance(exception, KeyboardInterrupt | SystemExit | SIGTERMException):
            self._report(trainer, "interrupted", str(exception) or type(exception).__name__)
        else:
            is_explained = isinstance(exception, ConfigError)
            kind = "" if is_explained else f"{type(exception).__name__}: "
            elsewhere = reason_of_lost_rank(run_dir_of(trainer), exception)
            self._report(trainer, "failed", elsewhere or f"{kind}{exception}")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Report a run that was stopped in its first rollout: it has no ``on_train_end``."""
        if stage == "fit":
            self._report(trainer, *_end_status(trainer, self._counters.iterations))

    def _report(self, trainer: Trainer, status: str, reason: str) -> None:
        if self._status != "running" or not self._has_started:
            return  # reported before, or a finished run was resumed and had nothing to do
        self._status, self._reason = status, reason
        self._write(trainer)
        totals = self._counters.results(self._seconds())
        rates = (
            f"rollout: {totals['trajectories_per_second']:.1f} trajectories/s, "
            f"{totals['tokens_per_second']:.0f} tokens/s; "
        )
        account = self._learned_by(trainer)
        learned_by = f"learned by {account}\n\n" if account else ""
        first_line = reason.partition("\n")[0]  # an error is printed whole when the command ends
        announce(
            trainer,
            f"\n{self._table()}\n\n{learned_by}{self._training_gap(trainer)}"
            f"{status}{': ' + first_line if first_line else ''}; {totals['iterations']} iterations "
            f"in {totals['seconds']:.0f} s; {rates if totals['trajectories'] else ''}"
            f"{run_dir_of(trainer) / RESULTS}",
        )

    def _table(self) -> str:
        """Return the table of scores, in which final scores of an earlier end are marked."""
        now = self._counters.iterations
        results = [
            replace(entry, policy=f"{FINAL}, iteration {entry.iterations}")
            if entry.policy == FINAL and entry.iterations != now
            else entry
            for entry in self.evaluations
        ]
        text = format_results(results, self.temperatures[0])
        if self._validation is None or any(entry.policy == FINAL for entry in results):
            return text
        return f"{text}\n\n{self._validation}"

    def _training_gap(self, trainer: Trainer) -> str:
        """Return a line if the final policy is better on its training starts than on the first
        evaluation set at the nearest temperature; else nothing."""
        data = data_module(trainer)
        eval_set, env = next(iter(data.eval_sets.items()))
        if [each.name for each in data.envs.values()] != [env.name]:
            return ""  # another task, or a mixture
        final = [
            each
            for each in self.evaluations
            if each.policy == FINAL
            and each.eval_set == eval_set
            and each.iterations == self._counters.iterations
        ]
        if not final:
            return ""
        sampled = data.rollout.temperature
        nearest = min(final, key=lambda each: abs((each.temperature or 0.0) - sampled))
        told = training_gap(self._history, nearest)
        return f"{told}\n\n" if told else ""

    # --- the file ---------------------------------------------------------------------------

    def _seconds(self) -> float:
        return self._counters.seconds + time.monotonic() - self._process_start

    def _learned_by(self, trainer: Trainer) -> str:
        """Say what the scores owe to hindsight imitation; empty without it, and while the run has
        played no rollout."""
        data = data_module(trainer)
        played = self._counters.iterations - data.warm_start.iterations
        if data.solutions is None or played <= 0:
            return ""
        critic_only = learner(trainer.lightning_module).critic_only_iterations
        return data.solutions.account(
            with_rl=played > critic_only and not data.solutions.config.alone
        )

    def _write(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero:
            return
        warm = data_module(trainer).warm_start
        content = {
            "status": self._status,
            "reason": self._reason,
            **self._counters.results(self._seconds()),
            "warm_start_iterations": warm.iterations,
            "demonstrations": warm.demonstrations if warm.iterations else 0,
            "learned_by": self._learned_by(trainer),
            **{k: v for c in rollout_callbacks(trainer) for k, v in c.results().items()},
            "evaluations": [entry.to_dict() for entry in self.evaluations],
            "history": _columns(self._history),
        }
        try:
            write_text(run_dir_of(trainer) / RESULTS, format_json(content))
        except OSError as error:  # such as a full disk: the run is worth more than its table
            text = f"{RESULTS} could not be written ({error}); the one before it is kept"
            record_fault(FaultKind.WRITE, text)
            announce(trainer, f"warning: {text}")

    def state_dict(self) -> dict[str, Any]:
        """Save the entries so far as plain data."""
        return {
            "counters": asdict(self._counters) | {"seconds": self._seconds()},
            "evaluations": [entry.to_dict() for entry in self.evaluations],
            "history": self._history,
            "validation": None if self._validation is None else self._validation.to_dict(),
        }

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Read the final scores of a run that is extended, before anything is written."""
        entries, _ = readable_evaluations(read_results(run_dir_of(trainer)) or {})
        self._earlier_final = [entry for entry in entries if entry.policy == FINAL]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the checkpoint."""
        self._counters = Counters(**state_dict["counters"])
        self.evaluations = [PolicyResult.from_dict(entry) for entry in state_dict["evaluations"]]
        self._history = list(state_dict["history"])
        validation = state_dict["validation"]
        self._validation = None if validation is None else Validation.from_dict(validation)
        if self._earlier_final:  # else those in the checkpoint, of an earlier end, stay
            self._replace_final(self._earlier_final)
        self._process_start = time.monotonic()


def _end_status(trainer: Trainer, iterations: int) -> tuple[str, str]:
    """Return the status and the reason with which an uninterrupted run ended."""
    for callback in rollout_callbacks(trainer):
        if callback.reason:
            return "stopped", callback.reason
    if is_done(iterations, trainer):
        return "finished", ""
    return "stopped", _what_stopped(trainer)


def _what_stopped(trainer: Trainer) -> str:
    """Say which of Lightning's limits ended a run before its last iteration."""
    if 0 <= trainer.max_steps <= trainer.global_step:
        return f"by trainer.max_steps, {trainer.max_steps}"
    for callback in all_callbacks(trainer):
        if isinstance(callback, EarlyStopping) and callback.stopping_reason_message is not None:
            return f"by EarlyStopping: {callback.stopping_reason_message}"
        if isinstance(callback, Timer):
            left = callback.time_remaining()
            if left is not None and left <= 0:
                limit = timedelta(seconds=round(callback.time_elapsed() + left))
                return f"by trainer.max_time, {limit} in all: a resumed run needs more"
    return "before its last iteration"


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Turn rows into columns, None if a row has no value."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


@dataclass(slots=True)
class Counters:
    """Counts over the whole run, across resumptions."""

    seconds: float = 0.0
    """Seconds of the run before this process resumed it."""
    iterations: int = 0
    trajectories: int = 0
    sampled_tokens: int = 0
    rollout_seconds: float = 0.0

    def results(self, seconds: float) -> dict[str, Any]:
        """Return the counts and the rates of rollouts as plain data.

        Args:
            seconds: The run's length so far.
        """
        rollout_seconds = max(self.rollout_seconds, 1e-9)
        return asdict(self) | {
            "seconds": round(seconds, 1),
            "rollout_seconds": round(self.rollout_seconds, 1),
            "trajectories_per_second": round(self.trajectories / rollout_seconds, 2),
            "tokens_per_second": round(self.sampled_tokens / rollout_seconds, 1),
        }
