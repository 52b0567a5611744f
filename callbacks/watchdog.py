"""What a run that does not move waits for."""

from __future__ import annotations

import logging
import math
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
_LONGEST_WAIT = 10.0
"""Seconds between two looks at most, of a long ``after_s``."""
_LATER = 1.1
"""Times ``after_s`` until the first rank says that it stands: what it waits for is then told, too,
though that may have begun to stand a little later."""
_FEW = 3
"""At most so many ranks are named with their machines."""


class Watchdog(RolloutCallback):
    """A warning of a training run that stands still: where each rank stands.

    An environment that hangs, a disk or a service that does not answer, a rank that others wait
    for: nothing of it raises an error. Where no thread of a rank has moved for ``after_s``, the
    stacks of its threads are in ``stalled/rank{n}.txt`` until it moves. The first rank reads these
    files and warns, then again after twice the time, and so on. Nothing is interrupted. A rank that
    stays within one call of compiled code does not move either, though it may work.

    Args:
        after_s: Seconds without a movement after which a rank counts as standing still; a number
            as large as 1e9 switches the warning off.
    """

    def __init__(self, after_s: float = 120.0) -> None:
        super().__init__()
        if not 0.0 < after_s < math.inf:
            raise ValueError(
                f"after_s is {after_s}; it must be above 0 and finite (120 is usual, 1e9 is never)"
            )
        self.after_s = after_s
        self._stop_watching: Callable[[], None] = _nothing

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch the thread that calls this, which trains."""
        self._stop_watching()
        if stage != "fit":
            return
        folder = run_dir_of(trainer) / FOLDER
        if rank() == 0:  # what is left there is of a run that was killed
            shutil.rmtree(folder, ignore_errors=True)
        wait = min(self.after_s / _LOOKS, _LONGEST_WAIT)
        stillness = Stillness(threading.get_ident(), self.after_s / 2, 3 * wait)
        watch = RankWatch(self.after_s, folder, pl_module, stillness)
        over = threading.Event()

        def look() -> None:
            while not over.wait(wait):
                watch.look()
            watch.forget()

        thread = threading.Thread(target=look, name="watchdog", daemon=True)
        thread.start()

        def stop() -> None:
            over.set()
            thread.join(timeout=5.0)  # it may be writing to a disk that does not answer

        self._stop_watching = stop

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop watching."""
        self._stop_watching()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Stop watching."""
        self._stop_watching()


def _nothing() -> None:
    """Stop no watch."""


@dataclass(frozen=True)
class Stall:
    """Where a rank stands."""

    rank: int
    host: str
    place: str
    since: float
    """Time of its last movement, in seconds since the epoch."""


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
        self._rank, self._ranks = rank(), world_size()
        self._first_warning = self._next_warning = _LATER * after_s
        self._after_s = self._first_warning if self._rank == 0 else after_s
        self._folder, self._module, self._stillness = folder, module, stillness
        self._file, self._is_written = folder / f"rank{self._rank}.txt", False
        self._own: Stall | None = None

    def look(self) -> None:
        """Warn, on the first rank; write where this one stands, or forget it when it moves."""
        still = self._stillness.look()
        if still < self._after_s:
            self.forget()
        elif self._own is None:
            place, since = self._stillness.place(), time.time() - still
            self._own = Stall(self._rank, socket.gethostname(), place, since)
        if self._rank == 0:
            self._warn()  # before the disk, which may be what does not answer
        if self._own is not None and not self._is_written:
            self._write(self._own)

    def forget(self) -> None:
        """Remove what says that this rank stands."""
        self._own = None
        if self._is_written:
            self._is_written = False
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _write(self, own: Stall) -> None:
        about = f"iteration {learner(self._module).iteration + 1}"
        lines = (own.place, own.host, str(own.since), about, "", self._stillness.stacks())
        with suppress(OSError):  # a full disk
            write_text(self._file, "\n".join(lines))
            self._is_written = True

    def _warn(self) -> None:
        """Warn if any rank has stood still for as long as the next warning wants."""
        own = [] if self._own is None else [self._own]
        stalls = own + ([] if self._ranks == 1 else read_stalls(self._folder))
        longest = max((time.time() - stall.since for stall in stalls), default=0.0)
        if longest >= self._next_warning:
            where = describe(stalls, self._ranks)
            _LOG.warning("standing still for %.0f s: %s; stacks: %s", longest, where, self._folder)
        while longest >= self._next_warning:
            self._next_warning *= 2
        if not stalls:
            self._next_warning = self._first_warning


def read_stalls(folder: Path) -> list[Stall]:
    """Read where the ranks stand that do, but the first one."""
    found = []
    for path in folder.glob("rank*.txt"):
        with suppress(OSError, ValueError):  # it moves again; or it is no file of a rank
            place, host, since, *_ = path.read_text(encoding="utf-8").splitlines()
            number = int(path.stem.removeprefix("rank"))
            found.append(Stall(number, host, place, float(since)))
    return sorted((stall for stall in found if stall.rank > 0), key=lambda stall: stall.rank)


def describe(stalls: Sequence[Stall], ranks: int) -> str:
    """Say where ranks stand, those of one place together, the smallest such group first. A rank of
    which there is no word works, or cannot say that it stands.

    Args:
        stalls: Where each stands that does, in the order of ranks.
        ranks: Number of ranks of the run.
    """
    if ranks == 1:
        return stalls[0].place
    groups: Mapping[str, list[Stall]] = defaultdict(list)
    for stall in stalls:
        groups[stall.place].append(stall)
    told = [
        f"{_named(group)} in {place}"
        for place, group in sorted(groups.items(), key=lambda each: len(each[1]))
    ]
    others = sorted(set(range(ranks)) - {stall.rank for stall in stalls})
    if others:
        told.insert(0, f"no word of {_numbers(others)}")
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
