"""The planned peak is the measured one, within 15 %."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.planned_memory import PHASES, compare


@pytest.mark.run
@pytest.mark.skipif(
    sys.platform != "linux",
    reason="a process's peak can be read, and begun anew, in Linux's /proc alone; elsewhere the "
    "benchmark refuses, which test_another_system_is_refused covers everywhere",
)
def test_a_plan_agrees_with_a_real_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    result = compare(["small"])["small"]
    assert "update" in capsys.readouterr().out
    for phase in PHASES:
        assert result["planned"][phase] == pytest.approx(result["measured"][phase], rel=0.15)


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    for read in (memory.peak_mebibytes, memory.resident_mebibytes):
        with pytest.raises(ValueError, match="only Linux has"):
            read()
