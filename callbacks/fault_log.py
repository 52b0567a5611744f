"""The faults of a run, as a file."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.distributed.collectives import gather_objects, rank
from ragen_pl.runtime.faults import Fault, Receiver, add_receiver, remove_receiver
from ragen_pl.training.access import learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.failed_ranks import record_failure
from ragen_pl.training.trainer import announce, run_dir_of

FOLDER = "faults"
_MOST_EARLY = 10_000
LARGEST = 50_000_000
"""Bytes of a file after which faults are only counted."""


class FaultLog(RolloutCallback):
    """Every fault that the run survived, one JSON object per line in ``faults/rank{n}.jsonl``,
    and what ended a rank of several in training, in ``failed/rank{n}.txt``.

    Each line has the kind of the fault, what happened, and where. ``faults`` in ``results.json``
    has their number by kind, over all ranks and resumptions. docs/faults.md says what becomes of
    each kind. A file of 50 MB takes no more lines, and faults are counted only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        """Faults by kind, of all ranks, up to the last iteration's end."""
        self._file: _FaultFile | None = None
        self._early: deque[Fault] = deque(maxlen=_MOST_EARLY)
        """Faults before ``setup``: Lightning lets the data module build its evaluation sets
        first."""
        self._receive_early: Receiver | None = self._early.append
        add_receiver(self._receive_early)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to record."""
        self._stop()
        path = run_dir_of(trainer) / FOLDER / f"rank{rank()}.jsonl"
        self._file = _FaultFile(path, pl_module, is_first=rank() == 0)
        add_receiver(self._file.receive)
        for fault in self._early:
            self._file.receive(fault)
        self._early.clear()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop recording."""
        self._tell(trainer)
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Record what ended this rank, and stop recording; nothing may be gathered here, as other
        ranks may have exited."""
        if trainer.state.fn == TrainerFn.FITTING:
            record_failure(run_dir_of(trainer), exception, learner(pl_module).iteration + 1)
        if self._file is not None:
            self.counts += self._file.take()
        self._tell(trainer)
        self._stop()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the iteration's faults over all ranks."""
        super().on_train_epoch_end(trainer, pl_module)
        self._count()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count what failed since the last iteration."""
        self._count()

    def on_evaluation_end(self, *_: Any) -> None:
        """Count what failed in an evaluation, before its scores are written."""
        self._count()

    def _count(self) -> None:
        own = Counter[str]() if self._file is None else self._file.take()
        for counts in gather_objects(own):
            self.counts += counts

    def _tell(self, trainer: Trainer) -> None:
        if self.counts and self._file is not None:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
            announce(trainer, f"faults: {kinds}; {self._file.path.parent} has each of them")

    def _stop(self) -> None:
        if self._receive_early is not None:
            remove_receiver(self._receive_early)
            self._receive_early = None
        if self._file is not None:
            remove_receiver(self._file.receive)
            self._file = None

    def results(self) -> Mapping[str, Any]:
        """Return the number of faults by kind."""
        own = Counter[str]() if self._file is None else self._file.unread
        return {"faults": dict(self.counts + own)}

    def state_dict(self) -> dict[str, Any]:
        """Save the counts."""
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the counts."""
        self.counts = Counter(state_dict["counts"])


class _FaultFile:
    """A file that each fault is appended to, created with the first one.

    Args:
        path: The file.
        module: The module, which knows the iteration.
        is_first: Whether this is rank 0, which counts faults that all ranks share.
    """

    def __init__(self, path: Path, module: LightningModule, *, is_first: bool) -> None:
        self.path, self._module, self._is_first = path, module, is_first
        self.unread: Counter[str] = Counter()
        """Faults since ``take``."""

    def receive(self, fault: Fault) -> None:
        """Append a fault as a line."""
        if self._is_first or not fault.is_shared:
            self.unread[str(fault.kind)] += 1  # a checkpoint holds plain data
        where = {"iteration": learner(self._module).iteration + 1, **fault.where}
        line = json.dumps({"kind": fault.kind, **where, "text": fault.text})  # escapes everything
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                if file.tell() < LARGEST:
                    file.write(line + "\n")
        except OSError:  # a full disk, of which whoever saves a checkpoint tells
            self.unread["unwritten"] += 1

    def take(self) -> Counter[str]:
        """Return the faults since the last call."""
        taken, self.unread = self.unread, Counter()
        return taken
