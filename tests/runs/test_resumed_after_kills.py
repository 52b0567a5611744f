"""A run that is killed and resumed ends as one that never was, with all that has a state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.resume_campaign import MOMENTS, kills
from tests.support.tiny_run import ROOT, environment


def test_moments_are_drawn_by_the_seed_and_a_save_is_among_them() -> None:
    assert kills(10, 1) == kills(10, 1) != kills(10, 2)
    for seed in range(20):
        found = kills(2, seed)
        assert "save" in {kill.moment for kill in found}
        assert [kill.iteration for kill in found] == sorted(kill.iteration for kill in found)
    assert {kill.moment for seed in range(20) for kill in kills(10, seed)} == set(MOMENTS)


@pytest.mark.parametrize(
    ("ranks", "then_ranks", "count"),
    [(1, 1, 2), (2, 2, 1), (1, 2, 1)],
    ids=["one rank", "two ranks", "one, then two"],
)
def test_killed_runs_end_as_an_unbroken_one(
    ranks: int, then_ranks: int, count: int, tmp_path: Path
) -> None:
    """In a process that forks, so that nothing here is disturbed; on other ranks up to rounding."""
    done = subprocess.run(
        [
            *(sys.executable, "benchmarks/resume_campaign.py", str(tmp_path)),
            *("--kills", str(count), "--ranks", str(ranks), "--then_ranks", str(then_ranks)),
        ],
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = done.stdout.splitlines()[-1]
    assert f"{count} kill" in facts
    assert "; 0 differ;" in facts
    assert "1 rollbacks" in facts
    assert " 0 solutions" not in facts
