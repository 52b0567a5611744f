"""A folder of shards is read completely, and nothing in it is executed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.distributed.shard_folder import META, load_whole
from ragen_pl.distributed.sharded_checkpoint import load_sharded
from ragen_pl.errors import ConfigError
from ragen_pl.training.run_folder import RunMetadata


class Command:
    """An object whose unpickling writes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "last.ckpt"
    moments = {"state": {"weight": {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.5}]}
    state = {"state_dict": {"weight": torch.arange(2.0)[None]}, "optimizer_0": moments}
    save(state, storage_writer=FileSystemWriter(path), no_dist=True)
    torch.save({"epoch": 3}, path / META)
    return path


def test_a_folder_is_read_completely(folder: Path) -> None:
    found = load_whole(folder)
    assert torch.equal(found["state_dict"]["weight"], torch.tensor([[0.0, 1.0]]))
    assert found["optimizer_0"]["param_groups"] == [{"lr": 0.5}]
    linear = nn.Linear(2, 1, bias=False)
    assert load_sharded(folder, linear, [], [], weights_only=None) == {"epoch": 3}
    assert torch.equal(linear.weight, torch.tensor([[0.0, 1.0]]))


def in_place(folder: Path) -> None:
    load_sharded(folder, nn.Linear(2, 1), [], [], weights_only=True)


@pytest.mark.parametrize("read", [AnyCheckpointIO().load_checkpoint, in_place])
def test_metadata_executes_nothing(
    folder: Path, tmp_path: Path, read: Callable[[Path], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    (folder / ".metadata").write_bytes(pickle.dumps(Command(mark)))
    with pytest.raises(ConfigError, match=r"\.metadata cannot be read \(it asks for"):
        read(folder)
    assert not mark.exists()
    assert "Traceback" not in "".join(capfd.readouterr())


def test_values_other_than_tensors_execute_nothing(folder: Path, tmp_path: Path) -> None:
    mark, bad = tmp_path / "mark", tmp_path / "bad.ckpt"
    state = {"optimizer_0": {"param_groups": [{"lr": Command(mark)}]}}
    save(state, storage_writer=FileSystemWriter(bad), no_dist=True)
    mark.unlink(missing_ok=True)  # saving may have copied it
    with pytest.raises(ConfigError, match="Weights only load failed"):
        load_whole(bad)
    assert not mark.exists()


def test_a_foreign_pickle_is_a_short_error(tmp_path: Path) -> None:
    mark, foreign = tmp_path / "mark", tmp_path / "foreign.ckpt"
    torch.save({"metadata": Command(mark)}, foreign)
    (tmp_path / "old.ckpt").write_bytes(pickle.dumps(Command(mark)))
    torch.save(torch.ones(3), tmp_path / "tensor.ckpt")
    for path in (foreign, tmp_path / "old.ckpt", tmp_path / "tensor.ckpt"):
        with pytest.raises(ConfigError, match="no readable checkpoint of ragen-pl"):
            RunMetadata.read(path)
    assert not mark.exists()


def test_a_checkpoint_of_before_the_renaming_says_so(tmp_path: Path) -> None:
    torch.save({"run": {"seed": 0}, "state_dict": {}}, tmp_path / "old.ckpt")
    with pytest.raises(ConfigError, match=r"old\.ckpt was written by an earlier version"):
        RunMetadata.read(tmp_path / "old.ckpt")
