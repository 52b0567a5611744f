"""A command that is refused before anything is computed."""

from __future__ import annotations

import pytest

from ragen_pl.cli.entry_point import main


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command that must fail shortly; return what it said."""
    assert main(["fit", "--config", "tiny.yaml", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) <= 3
    assert "Traceback" not in error
    assert "usage" not in error.lower()
    return error
