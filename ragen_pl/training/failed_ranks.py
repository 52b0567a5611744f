"""What ended a rank, told where the other ranks and the reader of a run find it.

When a rank of a training run fails, the others learn that its connection is gone, or nothing at
all. So a rank that fails for a reason of its own writes it to ``failed/rank{n}.txt`` of the run
folder, with its traceback. The others end with this reason instead of a traceback about their
connections, and a report names it even if the first rank was killed before it could write its
results.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from ragen_pl.distributed.collectives import rank, world_size
from ragen_pl.errors import LostRankError
from ragen_pl.runtime.out_of_memory import is_out_of_memory
from ragen_pl.runtime.user_faults import describe_fault, how_it_ends, is_own_end
from ragen_pl.runtime.visible_text import one_line, visible

FOLDER = "failed"
_LEFT_NO_REASON = (
    "The connection to another rank is gone, which left no reason: it may have been killed, as by "
    "the system for want of memory, or its machine cannot be reached. Its own output and the "
    "system's log may say more."
)
"""What a rank adds to its error about a connection where ``FOLDER`` says nothing."""
_PATIENCE = 1.0
"""Seconds in which a shared disk may show what another machine wrote. Lightning's launcher kills
the first rank within five seconds after another one has ended."""
_BACKENDS = ("gloo", "NCCL")
"""Names in the messages of plain RuntimeErrors, which the backward pass raises, too."""
_LOSSES = (
    *("Connection closed by peer", "Connection reset by peer", "Connection was likely closed"),
    *("Broken pipe", "failed to recv", "remote process exit", "communicator was aborted"),
    "ncclRemoteError",
)
"""Parts of messages that mean a loss. Others, such as of a port in use or of sizes that differ, are
a rank's own; one that has waited too long is told as such."""
_LAUNCHER_READS = "TORCHELASTIC_ERROR_FILE"


def record_failure(run_dir: Path, error: BaseException, iteration: int) -> None:
    """Write what ended this rank, for the others, and for torchrun's own summary.

    A single process, whose terminal shows its traceback, writes nothing; nor does a rank that was
    interrupted, or that ends because it lost another one.

    Args:
        run_dir: The folder of the run, which all ranks see.
        error: What the rank ends with.
        iteration: The iteration it was in, from 1 on.
    """
    if world_size() == 1 or is_lost_rank(error):
        return
    if isinstance(error, Exception):
        told = describe_fault(error)
    elif isinstance(error, SystemExit) and not is_own_end(error):
        told = how_it_ends(error)
    else:
        return
    first = f"rank {rank()} on {socket.gethostname()}, iteration {iteration}: {one_line(told)}"
    text = "\n\n".join((first, "".join(traceback.format_exception(error))))
    path = run_dir / FOLDER / f"rank{rank()}.txt"
    with suppress(OSError):  # a full disk: the terminal has it all the same
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(visible(text, len(text)), encoding="utf-8")
    if os.environ.get(_LAUNCHER_READS):
        with suppress(Exception):  # of a full disk, or of the user's exception: nothing may hide it
            get_error_handler().record_exception(error)


def forget_failures(run_dir: Path) -> None:
    """Remove what ended the ranks of an earlier attempt; only the first rank may call it."""
    shutil.rmtree(run_dir / FOLDER, ignore_errors=True)


def first_failure(run_dir: Path, patience: float = 0.0) -> str:
    """Return which rank failed first, why, and where its traceback is; empty if none did.

    Args:
        run_dir: The folder of the run.
        patience: Seconds to wait for one.
    """
    end = time.monotonic() + patience
    while not (found := _failures(run_dir)) and time.monotonic() < end:
        time.sleep(0.1)
    return f"{found[0][1]} ({run_dir / FOLDER} has the traceback)" if found else ""


def _failures(run_dir: Path) -> list[tuple[float, str]]:
    """Return the times and the first lines of what ended ranks, the earliest first."""
    found = []
    for path in (run_dir / FOLDER).glob("rank*.txt"):
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            found.append((path.stat().st_mtime, one_line(file.readline())))
    return sorted(found)


def reason_of_lost_rank(run_dir: Path, error: BaseException) -> str:
    """Return what ended the rank whose loss an error of a training run is; empty if the error is
    another one, or if the lost rank could not write why."""
    return first_failure(run_dir, _PATIENCE) if is_lost_rank(error) else ""


@contextmanager
def explain_lost_ranks(run_dir: Path) -> Iterator[None]:
    """Turn the loss of another rank within the context into what that rank failed with.

    Raises:
        LostRankError: when the rank wrote why; else the error itself has a note that it did not.
    """
    try:
        yield
    except RuntimeError as error:
        reason = reason_of_lost_rank(run_dir, error)
        if reason:
            raise LostRankError(reason) from error
        if is_lost_rank(error):
            error.add_note(_LEFT_NO_REASON)
        raise


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an error means that another rank is gone."""
    if world_size() == 1 or not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False  # ranks that have not met lose none; a backend's buffers may lack memory
    text = str(error)
    is_of_backend = isinstance(error, dist.DistError) or any(name in text for name in _BACKENDS)
    return is_of_backend and any(part in text for part in _LOSSES)
