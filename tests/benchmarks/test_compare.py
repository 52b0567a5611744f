"""Comparing two finished runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.compare import main
from ragen_pl.report.tables import PolicyResult
from ragen_pl.training.evaluation import summarize
from tests.support.doubles import make_group


def write_run(folder: Path, wins: list[bool]) -> Path:
    groups = [make_group([float(win)], seed=i) for i, win in enumerate(wins)]
    entry = PolicyResult("final", "default", 0.5, summarize(groups)).to_dict()
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"evaluations": [entry]}))
    return folder


def test_the_difference_is_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "a", [False] * 8 + [True] * 2)
    second = write_run(tmp_path / "b", [True] * 4 + [False] * 4 + [True] * 2)
    main([str(first), str(second)])
    # Gains are 4 × 1 and 6 × 0: mean 0.4, variance 2.4 / 9, half width 1.96 · √(0.2667 / 10).
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("default", "0.5", "20.0", "%", "60.0", "%", "+40.0", "[+8.0,", "+72.0]")
    ]


def test_a_policy_that_was_not_scored(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [True])
    with pytest.raises(SystemExit, match="it has final"):
        main([str(run), str(run), "--policy", "warm-started"])


def test_runs_that_cannot_be_compared_are_short_errors(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", [True] * 3), write_run(tmp_path / "b", [True] * 4)
    told = r"^error: default at T=0.5: .*not played on the same starts: 1 seeds .*such as 3"
    with pytest.raises(SystemExit, match=told):
        main([str(first), str(second)])
    with pytest.raises(SystemExit, match=r"^error: .*holds no results.json"):
        main([str(first), str(tmp_path)])
    results = second / "results.json"
    results.write_text(results.read_text().replace('"default"', '"other"'))
    with pytest.raises(SystemExit, match=r"first has default at T=0.5, the second other at T=0.5"):
        main([str(first), str(second)])
