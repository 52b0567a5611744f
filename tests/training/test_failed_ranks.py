"""What ended one rank is told by the others and by the run's folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch.distributed as dist

from callbacks.interruption import Interrupted
from ragen_pl.errors import LostRankError
from ragen_pl.training import failed_ranks
from ragen_pl.training.failed_ranks import (
    FOLDER,
    explain_lost_ranks,
    first_failure,
    forget_failures,
    is_lost_rank,
    reason_of_lost_rank,
    record_failure,
)

CLOSED = RuntimeError(
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
)


def as_rank(number: int, of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_ranks, "rank", lambda: number)
    monkeypatch.setattr(failed_ranks, "world_size", lambda: of)


def fail(run_dir: Path, error: BaseException, iteration: int) -> None:
    """Record an error as a rank that raised it."""
    try:
        raise error
    except type(error) as raised:
        record_failure(run_dir, raised, iteration)


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (CLOSED, True),
        (dist.DistBackendError("NCCL communicator was aborted on rank 3"), True),
        (dist.DistNetworkError("failed to recv, got 0 bytes"), True),
        (RuntimeError("NCCL error: remote process exited"), True),
        (dist.DistBackendError("NCCL: Cuda failure 'out of memory'"), False),
        (dist.DistNetworkError("EADDRINUSE: address already in use"), False),
        (dist.DistBackendError("NCCL error: ncclInvalidUsage: Duplicate GPU"), False),
        (RuntimeError("[gloo/unbound_buffer.cc:84] Timed out waiting 1800000ms"), False),
        (RuntimeError("[enforce fail at gloo/pair.cc:446] op.nbytes. 8 vs 4"), False),
        (RuntimeError("shape mismatch"), False),
        (ConnectionResetError("Connection reset by peer"), False),
        (SystemExit(1), False),
    ],
    ids=str,
)
def test_a_lost_rank_is_told_from_a_reason_of_ones_own(
    error: BaseException, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank(0, 2, monkeypatch)
    assert is_lost_rank(error) is is_lost
    as_rank(0, 1, monkeypatch)
    assert not is_lost_rank(error), "ranks that have not met lose none"


def test_the_others_end_with_what_failed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_ranks, "_PATIENCE", 0.0)
    as_rank(0, 4, monkeypatch)
    assert reason_of_lost_rank(tmp_path, CLOSED) == ""
    as_rank(2, 4, monkeypatch)
    fail(tmp_path, RuntimeError("no\nmemory"), 7)
    as_rank(1, 4, monkeypatch)
    fail(tmp_path, CLOSED, 7)
    fail(tmp_path, ValueError("later"), 8)
    first, second = (tmp_path / FOLDER / f"rank{number}.txt" for number in (2, 1))
    os.utime(first, (1, 1))
    assert sorted((tmp_path / FOLDER).iterdir()) == [second, first]
    assert "ValueError: later" in second.read_text()
    assert first.read_text().endswith("RuntimeError: no\nmemory\n"), "the traceback is whole"
    reason = reason_of_lost_rank(tmp_path, CLOSED)
    assert reason.startswith("rank 2 on ")
    assert ", iteration 7: RuntimeError: no memory" in reason
    assert reason_of_lost_rank(tmp_path, ValueError("of its own")) == ""
    forget_failures(tmp_path)
    assert first_failure(tmp_path) == ""
    forget_failures(tmp_path)  # a run that never failed


def test_a_single_process_writes_nothing(tmp_path: Path) -> None:
    fail(tmp_path, RuntimeError("in the terminal"), 1)
    assert not (tmp_path / FOLDER).exists()


def test_the_launcher_is_told_the_cause_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun prints what it finds there as the root cause."""
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    as_rank(1, 2, monkeypatch)
    fail(tmp_path, CLOSED, 1)
    assert not path.exists()
    fail(tmp_path, RuntimeError("a broken disk"), 1)
    assert "a broken disk" in json.loads(path.read_text())["message"]["message"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(3), "it ends the program, sys.exit(3)"),
        (KeyboardInterrupt(), ""),
        (Interrupted(15), ""),
        (ValueError("half a character: \ud800"), "half a character: ⟨U+D800⟩"),
    ],
    ids=["exit", "ctrl-c", "signal", "surrogate"],
)
def test_what_is_a_failure(
    error: BaseException, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank(1, 2, monkeypatch)
    fail(tmp_path, error, 1)
    assert told in first_failure(tmp_path)
    assert bool(first_failure(tmp_path)) == bool(told)


def test_nothing_hides_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, and an exception of the user's that cannot be shown."""

    class SilentError(Exception):
        def __str__(self) -> str:
            raise KeyError("text")

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "nowhere/error.json"))
    as_rank(1, 2, monkeypatch)
    (tmp_path / FOLDER).write_text("a file in the folder's place")
    fail(tmp_path, SilentError(), 1)


def test_an_error_about_a_connection_becomes_the_reason_or_has_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_ranks, "_PATIENCE", 0.0)
    as_rank(0, 2, monkeypatch)
    with pytest.raises(RuntimeError) as kept, explain_lost_ranks(tmp_path):
        raise RuntimeError(str(CLOSED))
    assert "left no reason" in kept.value.__notes__[0]
    with pytest.raises(RuntimeError) as own, explain_lost_ranks(tmp_path):
        raise RuntimeError("shape mismatch")
    assert not hasattr(own.value, "__notes__")
    as_rank(1, 2, monkeypatch)
    fail(tmp_path, OSError("the disk is gone"), 4)
    as_rank(0, 2, monkeypatch)
    told = "OSError: the disk is gone"
    with pytest.raises(LostRankError, match=told), explain_lost_ranks(tmp_path):
        raise RuntimeError(str(CLOSED))
