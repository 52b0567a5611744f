"""Checkpoints on disks that fail, after saves that were cut off, and of other programs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import callbacks.checkpoints
import callbacks.results
from callbacks import Checkpoints, FaultLog, Results
from ragen_pl.cli.resume import checkpoint_path, read_metadata
from ragen_pl.cli.saved_metadata import SavedMetadata
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.runtime.durable_files import put_in_place, recover, write_text
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.run_folder import RunMetadata
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner

saving: Any = callbacks.checkpoints
FULL = OSError(errno.ENOSPC, "No space left on device")
METADATA = RunMetadata(config={}, seed=0, threads=1, vocabulary=[])


def fit(folder: Path, iterations: int) -> Any:
    rollout = RolloutConfig(
        num_groups=2, group_size=2, max_turns=1, max_actions_per_turn=1, max_response_tokens=6
    )
    data = RolloutDataModule(
        NamedLamp(),
        {"lamp": NamedLamp()},
        prompts=PROMPTS,
        rollout=rollout,
        evaluation=EvaluationConfig(size=2),
    )
    trainer = make_trainer(
        folder,
        iterations,
        [
            SavedMetadata(METADATA),
            Checkpoints(every_n_iterations=1),
            Results(temperatures=(0.0,)),
            FaultLog(),
        ],
        limit_val_batches=0,
        enable_checkpointing=True,
        plugins=[AnyCheckpointIO()],
    )
    trainer.fit(make_learner(), data)
    return trainer


def saved(path: Path) -> int:
    """Return the iteration of a checkpoint."""
    return int(torch.load(path, weights_only=True)["starpo"]["iteration"])


def failing(real: Callable[..., Any], calls: set[int]) -> Callable[..., Any]:
    """Return a function of which some calls, counted from 1, meet a full disk."""
    count = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count in calls:
            raise FULL
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize("what", ["save", "export_policy", "put_in_place"])
def test_a_full_disk_leaves_the_checkpoint_before_it(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "save":
        torch_save = failing(torch.save, {3, 4})
        monkeypatch.setattr(torch, "save", torch_save)
    else:
        calls = {3, 4} if what == "export_policy" else {5, 6}  # two moves per save
        monkeypatch.setattr(saving, what, failing(getattr(saving, what), calls))
    fit(tmp_path, 4)
    folder = tmp_path / "checkpoints"
    assert saved(folder / "last.ckpt") == 2
    assert saved(folder / "previous.ckpt") == 1
    assert not list(tmp_path.glob("*/*.tmp")), "a draft would keep the disk full"
    told = capsys.readouterr().out
    assert "last.ckpt could not be saved (OSError: [Errno 28] No space left on device)" in told
    lines = (tmp_path / "faults/rank0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["kind"], record["iteration"]) for record in records] == [
        ("write", 3),
        ("write", 4),
    ]
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["status"], results["iterations"]) == ("finished", 4)
    assert results["faults"] == {"write": 2}


def test_a_checkpoint_with_faults_is_plain_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "export_policy", failing(saving.export_policy, {1}))
    fit(tmp_path, 3)
    state = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert state["callbacks"]["FaultLog"] == {"counts": {"write": 1}}


def test_results_that_cannot_be_written_do_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results: Any = callbacks.results
    monkeypatch.setattr(results, "write_text", failing(results.write_text, {2, 3}))
    fit(tmp_path, 3)
    assert "results.json could not be written" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["status"] == "finished"


def damage(path: Path, how: str) -> None:
    if how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "zeros in the middle":
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(bytes(64))
    elif how == "foreign":
        path.write_text("<html>404</html>")
    else:
        torch.save({"state_dict": {}}, path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    fit(folder, 2)
    return folder


@pytest.mark.parametrize(
    "how", ["empty", "truncated", "zeros in the middle", "foreign", "another program's"]
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_offered(
    how: str, sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("last.ckpt", "previous.ckpt"):
        (folder / name).write_bytes((sound / "checkpoints" / name).read_bytes())
    damage(folder / "last.ckpt", how)
    with pytest.raises(ConfigError) as told:
        read_metadata(checkpoint_path(tmp_path, "last"))
    first, *_, last = str(told.value).splitlines()
    assert "no readable checkpoint of ragen-pl" in first
    offered = f"the one before it is sound: --ckpt_path {folder / 'previous.ckpt'}"
    assert last.strip() == offered
    damage(folder / "previous.ckpt", how)
    with pytest.raises(ConfigError, match="there is no sound one beside it"):
        read_metadata(checkpoint_path(tmp_path, "last"))


def test_after_a_cut_off_save_the_folder_is_cleaned(tmp_path: Path) -> None:
    for name in ("last.tmp", "best.old", "last.ckpt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "previous.old").mkdir()
    (tmp_path / "previous.ckpt").write_text("kept")
    recover(tmp_path, ".ckpt")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"last.ckpt": "last.ckpt", "best.ckpt": "best.old", "previous.ckpt": "kept"}


@pytest.mark.parametrize("draft_is_folder", [False, True])
@pytest.mark.parametrize("there", ["nothing", "file", "folder"])
def test_whatever_is_replaced_is_kept(there: str, draft_is_folder: bool, tmp_path: Path) -> None:
    draft, place, before = (tmp_path / name for name in ("d.tmp", "last.ckpt", "previous.ckpt"))

    def make(path: Path, text: str, folder: bool) -> None:
        if folder:
            path.mkdir()
            (path / "part").write_text(text)
        else:
            path.write_text(text)

    def read(path: Path) -> str:
        return (path / "part" if path.is_dir() else path).read_text()

    if there != "nothing":
        make(place, "old", there == "folder")
        make(before, "older", there == "file")
    make(draft, "new", draft_is_folder)
    put_in_place(draft, place, before)
    assert read(place) == "new"
    assert there == "nothing" or read(before) == "old"
    assert {path.name for path in tmp_path.iterdir()} <= {"last.ckpt", "previous.ckpt"}


def test_everything_is_on_the_disk_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(number: int) -> None:
        events.append("flush")
        real_sync(number)

    monkeypatch.setattr(os, "fsync", sync)

    def replace(self: Path, target: Path) -> Path:
        events.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_text(tmp_path / "results.json", "{}")
    assert events == ["flush", "rename", "flush"], "the file, then its name in the folder"


def test_without_a_last_checkpoint_the_one_before_it_is_taken(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    before = tmp_path / "checkpoints/previous.ckpt"
    before.write_text("")
    assert checkpoint_path(tmp_path, "last") == before
