"""Parts and whole applications that are built without starting a run."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

from ragen_pl.cli.application import run
from ragen_pl.cli.config.files import prepare
from ragen_pl.cli.configured_parts import Unstarted


def test_an_application_that_starts_no_run_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of its folder was closed by the garbage collector, some time later."""
    monkeypatch.chdir(tmp_path)
    line = prepare(["fit", "--config", "bandit", "--threads", "1", "--run_dir", "run"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        run(line, Unstarted)
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []
    assert (tmp_path / "run/.lock").exists(), "the folder was locked meanwhile"
