"""Nodes that do not share a folder are told before anything is lost; slow disks are waited for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ragen_pl.distributed import checkpoint_io, collectives, shared_folder
from ragen_pl.distributed.checkpoint_io import make_parent_on_all
from ragen_pl.distributed.shared_folder import check_shared, wait_for_shards
from ragen_pl.errors import ConfigError
from tests.support.ranks import on_ranks

TOGETHER = (collectives, shared_folder, checkpoint_io)


def test_a_shared_folder_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_ranks(2, lambda _: check_shared(tmp_path / "run", 1.0), monkeypatch, *TOGETHER)
    assert list((tmp_path / "run").iterdir()) == []


def test_nodes_with_folders_of_their_own_all_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(rank: int) -> None:
        with pytest.raises(ConfigError, match=r"which rank 1 does not share.*\n.*--run_dir"):
            check_shared(tmp_path / f"node{rank}", 0.1)

    on_ranks(2, work, monkeypatch, *TOGETHER)
    assert list((tmp_path / "node0").iterdir()) == []


def test_a_rank_that_cannot_write_is_an_error_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's save would begin on the others, and wait for it."""
    (tmp_path / "node1").write_text("a file in the folder's place")

    def work(rank: int) -> str:
        with pytest.raises((OSError, RuntimeError)) as caught:
            make_parent_on_all(tmp_path / f"node{rank}" / "last.ckpt")
        return type(caught.value).__name__ if rank else str(caught.value)

    told, own = on_ranks(2, work, monkeypatch, *TOGETHER)
    assert told.startswith("rank 1 failed: FileExistsError: ")
    assert own == "FileExistsError"


def test_shards_that_come_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(folder: Path) -> None:
        if not (folder / "__1_0.distcp").exists():
            raise ConfigError("a shard is missing")

    monkeypatch.setattr(shared_folder, "check_shards", check)
    with pytest.raises(ConfigError, match="a shard is missing"):
        wait_for_shards(tmp_path, 0.1)
    late = threading.Timer(0.2, (tmp_path / "__1_0.distcp").touch)
    late.start()
    wait_for_shards(tmp_path, 20.0)
