"""Whose a checkpoint is, and when a run is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.training.run_folder import RESULTS, finished_iterations, is_of


def test_a_checkpoint_is_of_the_run_in_whose_folder_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("disk", "runs/a/checkpoints", "runs/ab/checkpoints"):
        Path(name).mkdir(parents=True)
    Path("disk/last.ckpt").touch()
    Path("runs/b").mkdir()
    Path("runs/b/checkpoints").symlink_to(tmp_path / "disk")
    Path("link").symlink_to(tmp_path / "runs/a")
    last = Path("checkpoints/last.ckpt")
    assert is_of(Path("runs/a"), tmp_path / "runs/a" / last)
    assert is_of(Path("link"), "runs/a" / last)
    assert is_of(Path("runs/a"), "link" / last)
    assert is_of(Path("runs/b"), "runs/b" / last)
    assert is_of(Path("runs/b"), Path("disk/last.ckpt"))
    assert not is_of(Path("runs/a"), "runs/ab" / last)
    assert not is_of(Path("runs/a"), "runs/a/../b" / last)


@pytest.mark.parametrize(
    ("content", "length"),
    [
        ({"status": "finished", "evaluations": [{"policy": "final"}]}, 7),
        ({"status": "finished", "evaluations": [{"policy": "expert"}]}, None),
        ({"status": "interrupted", "evaluations": [{"policy": "final"}]}, None),
        (["something else"], None),
    ],
)
def test_a_run_is_finished_when_its_final_policy_was_scored(
    tmp_path: Path, content: Any, length: int | None
) -> None:
    assert finished_iterations(tmp_path) is None
    whole = content | {"iterations": 7} if isinstance(content, dict) else content
    (tmp_path / RESULTS).write_text(json.dumps(whole))
    assert finished_iterations(tmp_path) == length
    (tmp_path / RESULTS).write_text(json.dumps(whole)[:-1])  # cut off
    assert finished_iterations(tmp_path) is None
