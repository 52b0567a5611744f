"""What a run that does not move waits for."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import rank, world_size
from ragen_pl.runtime.durable_files import write_text
from ragen_pl.runtime.standstill import Stillness
from ragen_pl.training.access import learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import run_dir_of

_LOG = logging.getLogger(__name__)
FOLDER = "stalled"
_LOOKS = 60
"""Looks at the threads before a rank counts as standing still."""
_LATE = 1.1
"""Times ``after_s`` until the first rank warns: others may see a little later that they stand."""
_FEW = 3
"""At most so many ranks are named with their machines."""


class Watchdog(RolloutCallback):
    """A warning of a run that stands still: where each rank stands, and which still move.

    An environment that hangs, a disk or a service that does not answer, a rank that others wait
    for: nothing of it raises an error. Where no thread of a rank has moved for ``after_s``, the
    stacks of its threads are in ``stalled/rank{n}.txt`` until it moves. The first rank reads these
    files and warns, then again after twice the time, and so on. Nothing is interrupted.

    Args:
        after_s: Seconds without a movement after which a rank counts as standing still. A long
            call into compiled code is no movement either.
    """

    def __init__(self, after_s: float = 120.0) -> None:
        super().__init__()
        if after_s <= 0.0:
            raise ValueError(f"after_s is {after_s}; it must be above 0 (120 is usual)")
        self.after_s = after_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch the thread that calls this."""
        self._stop()
        folder = run_dir_of(trainer) / FOLDER
        if rank() == 0:  # what is left there is of a run that was killed
            shutil.rmtree(folder, ignore_errors=True)
        watch = RankWatch(self.after_s, folder, pl_module, Stillness(threading.get_ident()))
        self._over.clear()
        self._thread = threading.Thread(
            target=self._watch, args=(watch,), name="watchdog", daemon=True
        )
        self._thread.start()

    def _watch(self, watch: RankWatch) -> None:
        while not self._over.wait(self.after_s / _LOOKS):
            watch.look()
        watch.forget()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop watching."""
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Stop watching."""
        self._stop()

    def _stop(self) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join(timeout=5.0)  # it may be writing to a disk that does not answer
            self._thread = None


@dataclass(frozen=True)
class Stall:
    """Where a rank stands."""

    rank: int
    host: str
    place: str
    seconds: float


class RankWatch:
    """The looks of one rank at itself, and of the first rank at the files of all.

    Args:
        after_s: Seconds after which a rank stands still.
        folder: The folder of the files.
        module: The module, which knows the iteration.
        stillness: How long this process has not moved.
    """

    def __init__(
        self, after_s: float, folder: Path, module: LightningModule, stillness: Stillness
    ) -> None:
        self._after_s, self._first_told_at, self._folder = after_s, _LATE * after_s, folder
        self._told_at = self._first_told_at
        self._module, self._stillness = module, stillness
        self._rank, self._ranks = rank(), world_size()
        self._file, self._is_written = folder / f"rank{self._rank}.txt", False

    def look(self) -> None:
        """Write where this rank stands, or forget it when it moves; on the first rank, warn."""
        if self._stillness.look() < self._after_s:
            self.forget()
        elif not self._is_written:
            self._write()
        if self._rank == 0:
            self._tell()

    def forget(self) -> None:
        """Remove what says that this rank stands."""
        if self._is_written:
            self._is_written = False
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        since = time.time() - self._after_s
        about = f"iteration {learner(self._module).iteration + 1}"
        place, stacks = self._stillness.place(), self._stillness.stacks()
        lines = (place, socket.gethostname(), str(since), about, "", stacks)
        with suppress(OSError):  # a disk that is full, or does not answer
            write_text(self._file, "\n".join(lines))
            self._is_written = True

    def _tell(self) -> None:
        """Warn if any rank has stood still for as long as the next warning wants."""
        stalls = read_stalls(self._folder)
        longest = max((stall.seconds for stall in stalls), default=0.0)
        if longest >= self._told_at:
            text = describe(stalls, self._ranks)
            _LOG.warning(
                "nothing has moved for %.0f s: %s; %s has the stacks", longest, text, self._folder
            )
        while longest >= self._told_at:
            self._told_at *= 2
        if not stalls:
            self._told_at = self._first_told_at


def read_stalls(folder: Path) -> list[Stall]:
    """Read where ranks stand, from the files of those that do, in the order of ranks."""
    found = []
    for path in folder.glob("rank*.txt"):
        with suppress(OSError, ValueError):  # it moves again; or it is no file of a rank
            place, host, since, *_ = path.read_text(encoding="utf-8").splitlines()
            number, seconds = int(path.stem.removeprefix("rank")), time.time() - float(since)
            found.append(Stall(number, host, place, seconds))
    return sorted(found, key=lambda stall: stall.rank)


def describe(stalls: Sequence[Stall], ranks: int) -> str:
    """Say where ranks stand, those of one place together, the smallest such group first.

    Args:
        stalls: Where each stands that does.
        ranks: Number of ranks of the run.
    """
    if ranks == 1:
        return f"the run stands in {stalls[0].place}"
    groups: Mapping[str, list[Stall]] = defaultdict(list)
    for stall in stalls:
        groups[stall.place].append(stall)
    told = [
        f"{_named(group)} in {place}"
        for place, group in sorted(groups.items(), key=lambda each: len(each[1]))
    ]
    moving = sorted(set(range(ranks)) - {stall.rank for stall in stalls})
    if moving:
        told.insert(0, f"{_numbers(moving)} still moving")
    return ", ".join(told)


def _named(group: Sequence[Stall]) -> str:
    if len(group) > _FEW:
        return _numbers([stall.rank for stall in group])
    return " and ".join(f"rank {stall.rank} (on {stall.host})" for stall in group)


def _numbers(ranks: Sequence[int]) -> str:
    """Write ranks with ranges, such as ``ranks 0-6, 8``."""
    ranges: list[list[int]] = []
    for number in ranks:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    text = ", ".join("-".join(map(str, each)) for each in ranges)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
