"""Every planted fault is survived and in the run's log; hostile strings come through whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fault_campaign import campaign, strings
from benchmarks.hostile_strings import CANARY, KINDS, hostile_pieces, hostile_strings


def test_hostile_strings_are_the_same_in_every_process_and_of_all_kinds() -> None:
    found = hostile_strings(500, seed=3)
    assert found == hostile_strings(500, seed=3) != hostile_strings(500, seed=4)
    pieces = hostile_pieces(3)
    assert {next(pieces).kind for _ in KINDS} == set(KINDS)
    assert any(CANARY in text for text in found)
    for text in hostile_strings(500, surrogates=False):
        text.encode()


def test_hostile_strings_come_through_whole_and_nothing_is_executed(tmp_path: Path) -> None:
    assert strings(1000, 1, tmp_path) == []


@pytest.mark.run
def test_faults_are_survived_and_none_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = campaign(tmp_path, faults=50, count=100, seed=1)
    assert status == 0, capsys.readouterr().out
