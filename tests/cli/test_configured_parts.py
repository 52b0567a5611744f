"""Parts and whole applications that are built without starting a run."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

from ragen_pl.cli.application import run
from ragen_pl.cli.config.files import prepare
from ragen_pl.cli.configured_parts import Unstarted


def test_an_application_that_starts_no_run_leaves_its_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moved an earlier run aside, and the garbage collector closed the lock some time later."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    line = prepare(["fit", "--config", "bandit", "--threads", "1", "--run_dir", "run"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        run(line, Unstarted)
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []
    assert [each.name for each in tmp_path.rglob("*")] == ["run", "checkpoints"]
