"""The environment of docs/extending.md keeps the contract, and its evaluation set says what it
is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.training.datamodule import RolloutDataModule

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def test_guess_number(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(# my_envs\.py.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    kind = names["GuessNumber"]
    RolloutDataModule(kind(), {"default": kind()}).setup("fit")
    assert "data.eval_sets.default: 10 of its 10 starts are among" in capsys.readouterr().out
