"""Progress of a run: a live bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from tqdm import tqdm  # type: ignore[import-untyped]

from ragen_pl.rollout.rank_means import RankMeans
from ragen_pl.training.access import find_data_module, learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import Phase, TrajectoryGroup, trainable_trajectories

_BAR = "{n_fmt}/{total_fmt} |{bar:20}| {desc}"
_BAR_WITHOUT_ITERATIONS = "{desc}"
_AVERAGED_ITERATIONS = 20
"""Iterations over which durations are averaged, recent ones with more weight."""
_MAX_OUTLIER = 3.0
"""Limit of a duration as a multiple of the average, so that one slow iteration changes the average
little."""


@dataclass
class MeanSeconds:
    """Mean seconds of a repeated task: the plain mean at first, then an exponential moving one."""

    mean: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        """Add a duration."""
        if self.count:
            seconds = min(seconds, _MAX_OUTLIER * self.mean)
        self.count += 1
        self.mean += (seconds - self.mean) / min(self.count, _AVERAGED_ITERATIONS)


class RunDisplay(ProgressBar, RolloutCallback):
    """A display of iteration, activity, success and time left, in place of Lightning's bar.

    Args:
        line_every: Seconds between two lines if the output is not a terminal.
    """

    def __init__(self, line_every: float = 10.0) -> None:
        ProgressBar.__init__(self)
        RolloutCallback.__init__(self)
        if line_every < 0:
            raise ValueError(f"line_every is {line_every}; it is seconds, 0 or more")
        self.line_every = line_every
        self._enabled = True
        self._bar: tqdm[Any] | None = None
        self._activity = "starting"
        self._metrics: dict[str, str] = {}
        self._done = 0
        self._warm_iterations = 0
        self._paces: dict[str, MeanSeconds] = {phase: MeanSeconds() for phase in Phase}
        self._validations = MeanSeconds()
        self._validate_every = 0
        self._iteration_start = self._validation_start = 0.0
        self._evaluation_seconds = 0.0  # of this iteration
        self._last_line = -1e9

    def disable(self) -> None:
        """Show nothing, as on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show progress."""
        self._enabled = True

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print lines above the bar."""
        text = sep.join(map(str, args))
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text, file=sys.stdout)

    # --- what is happening ------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Read how many iterations belong to the warm start."""
        super().setup(trainer, pl_module, stage)
        data = find_data_module(trainer)
        self._warm_iterations = 0 if data is None else data.warm_start.iterations
        self._validate_every = trainer.check_val_every_n_epoch or 0
        self._iteration_start = time.monotonic()

    def on_teaching_progress(self, trainer: Trainer, module: LightningModule, text: str) -> None:
        """Show what the warm start's teacher is doing."""
        self._show(text)

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Show that a rollout begins, and read the iteration at which a resumed run goes on."""
        self._done = iteration
        self._show(f"rollout 0/{num_trajectories} trajectories")

    def on_rollout_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Show how many trajectories have ended."""
        self._show(f"rollout {finished}/{total} trajectories")

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Show success and return of what was collected on all ranks."""
        averages = RankMeans()
        for trajectory in trainable_trajectories(groups):
            averages.add("success", float(trajectory.success))
            averages.add("return", trajectory.total_reward)
        self._metrics = {name: f"{value:.2f}" for name, value in averages.means().items()}
        self._show("updating")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the iteration at which a run is resumed in its warm start."""
        self._done = max(self._done, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Show the update."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if learner(pl_module).phase == Phase.WARM_START:
            self._show(f"warm start {trainer.current_epoch + 1}/{self._warm_iterations}")
        else:
            self._show("updating")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show that evaluation sets are being played."""
        self._validation_start = time.monotonic()
        self._show("evaluating")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the seconds of an evaluation apart from those of its iteration."""
        seconds = time.monotonic() - self._validation_start
        self._validations.add(seconds)
        self._evaluation_seconds += seconds

    def on_evaluation_start(
        self, trainer: Trainer, module: LightningModule, description: str
    ) -> None:
        """Show which policy is evaluated on which evaluation set.

        The iteration is read here, too: a resumed run may do nothing but evaluate.
        """
        self._done = max(self._done, learner(module).iteration)
        self._show(f"evaluating {description}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the iteration."""
        super().on_train_epoch_end(trainer, pl_module)
        now = time.monotonic()
        phase = learner(pl_module).phase
        seconds = now - self._iteration_start - self._evaluation_seconds
        self._paces[phase].add(max(0.0, seconds))
        self._iteration_start, self._evaluation_seconds = now, 0.0
        self._done = trainer.current_epoch + 1
        loss = trainer.callback_metrics.get("train/imitation_loss")
        if phase == Phase.WARM_START and loss is not None:
            self._metrics = {"imitation loss": f"{float(loss):.3f}"}
        is_last = self._done == trainer.max_epochs
        self._show("done" if is_last else self._activity, at_once=is_last)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restore the terminal."""
        self._close_bar()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the bar's last state on the terminal."""
        self._close_bar()

    # --- showing it -------------------------------------------------------------------------

    def _show(self, activity: str, *, at_once: bool = False) -> None:
        self._activity = activity
        if not self._enabled or self.trainer.sanity_checking:
            return
        if not self._trains:  # the iterations are a run's, not this evaluation's
            self._show_text(activity, activity, 0)
            return
        total = max(0, self.trainer.max_epochs or 0)  # 0: no limit
        text = " · ".join([activity, *(f"{k} {v}" for k, v in self._metrics.items())])
        left = self.remaining(total)
        if left is not None and self._done < total:
            text += f" · {_rounded(left)} left"
        number = f"{min(self._done + 1, total)}/{total}" if total else f"{self._done + 1}"
        self._show_text(text, f"iteration {number} · {text}", total, at_once=at_once)

    @property
    def _trains(self) -> bool:
        return bool(self.trainer.state.fn == TrainerFn.FITTING)

    def _show_text(self, text: str, line: str, total: int, *, at_once: bool = False) -> None:
        """Show a text behind the bar on a terminal, a line elsewhere."""
        if sys.stdout.isatty():
            self._update_bar(text, total)
        elif at_once or time.monotonic() - self._last_line >= self.line_every:
            self._last_line = time.monotonic()
            print(line, flush=True)

    def _update_bar(self, text: str, total: int) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=total or None,
                bar_format=_BAR if self._trains else _BAR_WITHOUT_ITERATIONS,
                dynamic_ncols=True,
                file=sys.stdout,
                leave=True,
            )
        self._bar.n = self._done
        self._bar.set_description_str(text)

    def remaining(self, total: int) -> float | None:
        """Predict the seconds left from the pace of each phase's iterations and of validations;
        None while a phase's pace is unknown."""
        warm = max(0, self._warm_iterations - self._done)
        counts = {Phase.WARM_START: warm, Phase.RL: max(0, total - self._done - warm)}
        if any(count and not self._paces[phase].count for phase, count in counts.items()):
            return None
        seconds = sum(count * self._paces[phase].mean for phase, count in counts.items())
        if self._validate_every:
            due = total // self._validate_every - self._done // self._validate_every
            seconds += due * self._validations.mean
        return seconds

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _rounded(seconds: float) -> str:
    """Round a prediction to its precision: to 10 s from one minute on, to minutes from ten."""
    unit = 1 if seconds < 60 else 10 if seconds < 600 else 60
    return str(timedelta(seconds=unit * round(seconds / unit)))
