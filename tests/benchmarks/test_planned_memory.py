"""The planned peak is the measured one, within 15 %."""

from __future__ import annotations

import sys

import pytest

from benchmarks.planned_memory import PHASES, compare


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_plan_agrees_with_a_real_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    result = compare(["small"])["small"]
    assert "update" in capsys.readouterr().out
    for phase in PHASES:
        assert result["planned"][phase] == pytest.approx(result["measured"][phase], rel=0.15)
