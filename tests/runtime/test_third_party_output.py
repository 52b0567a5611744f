"""Other libraries are silent, except for what was asked of them."""

from __future__ import annotations

import logging

import pytest
from lightning.pytorch.profilers import SimpleProfiler

from ragen_pl.runtime.third_party_output import silence_libraries


def test_the_report_of_a_profiler_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    silence_libraries()
    lightning = logging.getLogger("lightning.pytorch")
    lightning.addHandler(caplog.handler)
    try:
        profiler = SimpleProfiler()
        with profiler.profile("rollout"):
            pass
        profiler.describe()
        lightning.info("GPU available: False")
    finally:
        lightning.removeHandler(caplog.handler)
    assert "rollout" in caplog.text
    assert "GPU" not in caplog.text
