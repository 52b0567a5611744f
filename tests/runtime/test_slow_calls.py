"""The warning of calls that take long."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from ragen_pl.runtime.slow_calls import telling_of_long_calls

HERE = (Path(__file__),)


def compiled(folder: Path, text: str):  # type: ignore[no-untyped-def]
    """Return the functions of a user's file."""
    path = folder / "slow_tools.py"
    path.write_text(text)
    names: dict[str, object] = {}
    exec(compile(text, str(path), "exec"), names)
    return names


TEXT = """\
import time
def step(seconds):
    wait(seconds)
def wait(seconds):
    time.sleep(seconds)
def quick():
    pass
"""


def test_a_long_call_is_named_with_where_it_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = compiled(tmp_path, TEXT)
    with (
        caplog.at_level(logging.WARNING),
        telling_of_long_calls("env", HERE, long_s=0.2),
        telling_of_long_calls("within it", HERE, long_s=0.2),  # which tells nothing twice
    ):
        names["step"](0.7)
    first, *others = caplog.messages
    assert first.startswith("env: step has taken 0 s so far, and is in wait (slow_tools.py:5); it")
    assert len(others) <= 1, "told again after twice the time only"


def test_many_short_calls_are_no_long_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = compiled(tmp_path, TEXT)
    with caplog.at_level(logging.WARNING), telling_of_long_calls("env", HERE, long_s=0.2):
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            names["quick"]()
            names["step"](0.01)
    assert not caplog.messages
