"""Set up what tests of the command share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.models.embedded import EmbeddedModel
from tests.support.tiny_run import write_config


@pytest.fixture
def config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    def build(*_: object) -> None:
        raise AssertionError("a model was built before the configuration was checked")

    monkeypatch.setattr(EmbeddedModel, "build", build)
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path)
