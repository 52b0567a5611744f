"""An orderly end of a run on SIGINT, SIGTERM and SIGUSR1."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, NoReturn

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from callbacks.checkpoints import Checkpoints
from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.run_folder import CHECKPOINTS, LAST
from ragen_pl.training.trainer import announce, find_callback, run_dir_of
from ragen_pl.types import TrajectoryGroup

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGUSR1"):  # what SLURM is often asked to send before the time is over
    _SIGNALS.append(signal.SIGUSR1)


class Interrupted(SystemExit):
    """An exit with the status a shell expects after a signal."""

    def __init__(self, signum: int, status: int | None = None) -> None:
        super().__init__(128 + signum if status is None else status)
        self.signum = signum

    def __str__(self) -> str:
        return signal.Signals(self.signum).name


class Interruption(RolloutCallback):
    """A handler of SIGINT, SIGTERM and SIGUSR1 that exits between turns and updates, with 128 and
    the signal's number (130, 143, 138).

    All ranks exit together, at the next point that each of them reaches equally often: before a
    rollout, after each of its collections, before an explicit evaluation, and before and after an
    update. A signal to one rank is enough.

    Nothing is saved and no final policy is evaluated on exit: what was collected since the last
    checkpoint is dropped, and a resumed run repeats it bit for bit. (A run that a callback stops is
    different: its ``last.ckpt`` is the policy that was evaluated.) A second signal ends the process
    immediately.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signum: int | None = None
        self._previous: dict[int, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Install the handler, which the trainer calls in addition to its own."""
        for signum in _SIGNALS:
            self._previous[signum] = signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """Record the signal; nothing else is safe in a signal handler."""
        if self.signum is not None:
            _kill(signum)
        self.signum = signum
        os.write(2, b"\nstopping; a second signal ends the process immediately\n")

    def _replace_trainer_handlers(self) -> None:
        """Disable the trainer's own handler.

        Its exception, which may come before this callback's, exits with 0, as if the run had
        finished. With several ranks it also starts a broadcast to the others, even in the middle of
        another exchange, waits for them in it, and signals them again.
        """
        if self._previous:
            for signum in _SIGNALS:
                signal.signal(signum, self._handle)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the previous handlers."""
        self._restore_handlers()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Print how to resume."""
        self._restore_handlers()
        if self.signum is None:
            return
        if trainer.state.fn != TrainerFn.FITTING:  # there is nothing to resume
            announce(trainer, f"interrupted by {signal.Signals(self.signum).name}")
            return
        folder = run_dir_of(trainer)
        saved = (folder / CHECKPOINTS / f"{LAST}.ckpt").exists()
        checkpoints = find_callback(trainer, Checkpoints)
        number = None if checkpoints is None else checkpoints.last_saved
        where = "" if number is None else f" after iteration {number}"
        how = (
            f"to resume{where}, add --ckpt_path last to the same command"
            if saved
            else "no iteration had been saved: start the same command again"
        )
        announce(trainer, f"interrupted by {signal.Signals(self.signum).name}; {how}")

    def _restore_handlers(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}

    def _check(self) -> None:
        """Exit if any rank was signalled; every rank must call it."""
        signum = max(gather_objects(self.signum or 0))
        if signum:  # else a signal that came since is handled by the next check
            self.signum = signum
            # The launcher kills the first rank when it sees that another one failed.
            raise Interrupted(signum, status=None if rank() == 0 else 0)

    # --- the points at which a run may exit ---------------------------------------------------

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Exit before a rollout."""
        self._replace_trainer_handlers()
        self._check()

    def on_rollout_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Exit between turns, also of evaluations. Only a single process does so, since ranks
        differ in how many turns they play."""
        if world_size() == 1:
            self._check()

    on_evaluation_progress = on_rollout_progress

    def on_teaching_progress(self, trainer: Trainer, module: LightningModule, text: str) -> None:
        """Exit while a teacher works; with several ranks, of which the others wait, afterwards."""
        self._replace_trainer_handlers()
        if world_size() == 1:
            self._check()

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Exit after each collection."""
        self._check()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Disable the trainer's handler."""
        self._replace_trainer_handlers()

    def on_evaluation_start(
        self, trainer: Trainer, module: LightningModule, description: str
    ) -> None:
        """Exit before an evaluation, which may be all that a resumed run does."""
        self._replace_trainer_handlers()
        self._check()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Exit before an update."""
        self._check()
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Exit after an update."""
        self._check()


def _kill(signum: int) -> NoReturn:
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)
