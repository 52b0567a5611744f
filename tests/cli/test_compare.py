"""The command that compares runs, paired start by start."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ragen_pl.cli.entry_point import main
from ragen_pl.training.evaluation.results import PolicyResult, summarize
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_group


def write_run(
    folder: Path, wins: list[bool], fingerprint: str | None = "10:ab", policy: str = "final"
) -> Path:
    groups = [make_group([float(win)], group_id=i, seed=i) for i, win in enumerate(wins)]
    return write_results(folder, [result_of(groups, fingerprint, policy)])


def result_of(
    groups: list[TrajectoryGroup], fingerprint: str | None = "10:ab", policy: str = "final"
) -> PolicyResult:
    return PolicyResult(policy, "default", 0.5, summarize(groups), 3, fingerprint)


def write_results(folder: Path, results: list[PolicyResult]) -> Path:
    folder.mkdir()
    entries = [each.to_dict() for each in results]
    (folder / "results.json").write_text(json.dumps({"evaluations": entries}))
    return folder


def test_the_difference_is_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "a", [False] * 8 + [True] * 2)
    second = write_run(tmp_path / "b", [True] * 4 + [False] * 4 + [True] * 2)
    assert main(["compare", str(first), str(second)]) == 0
    # Four starts gained and none lost: an exact p of 2 / 2⁴.
    row = capsys.readouterr().out.splitlines()[2].split()
    assert row[:7] == ["default", "0.5", "20.0", "%", "60.0", "%", "+40.0"]
    assert row[9:] == ["0.12", "10"]


def test_json_holds_every_comparison_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_run(tmp_path / name, [name > "a", True]) for name in "abc"]
    assert main(["compare", *map(str, runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first"] == f"{runs[0]} (final)"
    assert [each["second"] for each in found["comparisons"]] == [f"{r} (final)" for r in runs[1:]]
    (difference,) = found["comparisons"][1]["differences"]
    assert (difference["difference"], difference["starts"], difference["p_value"]) == (0.5, 2, 1.0)
    assert difference["low"] < 0.5 < difference["high"] <= 1


def test_several_tries_at_a_start_are_one_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [make_group([1.0, 0.0], group_id=i, seed=i) for i in range(12)]
    more = [make_group([1.0, 1.0], group_id=i, seed=i) for i in range(12)]
    first = write_results(tmp_path / "a", [result_of(few)])
    second = write_results(tmp_path / "b", [result_of(more)])
    assert main(["compare", str(first), str(second), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"][0]["differences"]
    assert (found["difference"], found["low"], found["high"]) == (0.5, 0.5, 0.5)
    assert (found["starts"], found["p_value"] < 0.01) == (12, True)


def test_seeds_of_one_start_are_one_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty seeds of two bandits: what is said holds for the two."""

    def played(wins: bool) -> list[TrajectoryGroup]:
        groups = [make_group([float(wins)], group_id=i, seed=i) for i in range(20)]
        keyed = [replace(g.trajectories[0], start_key=str(g.seed % 2)) for g in groups]
        return [replace(g, trajectories=(t,)) for g, t in zip(groups, keyed, strict=True)]

    first = write_results(tmp_path / "a", [result_of(played(False))])
    second = write_results(tmp_path / "b", [result_of(played(True))])
    assert main(["compare", str(first), str(second), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"][0]["differences"]
    assert (found["difference"], found["starts"]) == (1.0, 2)
    assert found["p_value"] < 0.001


def test_both_rates_and_their_difference_are_over_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine seeds of one start and one of another: solving the one alone is 10 or 90 % of the
    trajectories, and half of the starts."""

    def played(wins: set[str]) -> list[TrajectoryGroup]:
        groups = []
        for seed in range(10):
            key = "rare" if seed == 0 else "often"
            group = make_group([float(key in wins)], group_id=seed, seed=seed)
            (trajectory,) = group.trajectories
            groups.append(replace(group, trajectories=(replace(trajectory, start_key=key),)))
        return groups

    first = write_results(tmp_path / "a", [result_of(played({"often"}))])
    second = write_results(tmp_path / "b", [result_of(played({"often", "rare"}))])
    assert main(["compare", str(first), str(second)]) == 0
    shown = capsys.readouterr().out
    assert "success as the mean over initial states, paired by them" in shown
    row = shown.splitlines()[2].split()
    assert row[:7] == ["default", "0.5", "50.0", "%", "100.0", "%", "+50.0"]
    assert main(["compare", str(first), str(second), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"][0]["differences"]
    assert found["second"] - found["first"] == found["difference"] == 0.5


def test_policies_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = [make_group([float(i > 2)], group_id=i, seed=i) for i in range(6)]
    none = [make_group([0.0], group_id=i, seed=i) for i in range(6)]
    run = write_results(tmp_path / "a", [result_of(none, policy="warm-started"), result_of(groups)])
    assert main(["compare", str(run), "--policy", "warm-started", "--policy", "final"]) == 0
    assert "+50.0" in capsys.readouterr().out
    assert main(["compare", str(run)]) == 2
    assert "1 RUN and 0 --policy are given" in capsys.readouterr().err


def test_sets_with_other_fingerprints_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_run(tmp_path / "a", [True, False])
    second = write_run(tmp_path / "b", [True, False], fingerprint="10:cd")
    assert main(["compare", str(first), str(second)]) == 2
    assert "default at T=0.5: the evaluation sets differ" in capsys.readouterr().err
    easy = replace(result_of([make_group([1.0], seed=1)]), eval_set="easy")
    for run, print_ in ((first, "10:ab"), (second, "10:cd")):
        wins = [make_group([1.0], seed=0)]
        content = [result_of(wins, print_).to_dict(), easy.to_dict()]
        (run / "results.json").write_text(json.dumps({"evaluations": content}))
    assert main(["compare", str(first), str(second)]) == 0
    told = capsys.readouterr().out
    assert "refused: default at T=0.5" in told
    assert "easy" in told.splitlines()[2]


def test_results_of_earlier_versions_are_compared_by_their_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_run(tmp_path / "a", [True, False], fingerprint=None)
    second = write_run(tmp_path / "b", [True, True])
    entry = json.loads((first / "results.json").read_text())["evaluations"][0]
    for later in ("fingerprint", "pass_at", "action_ratio"):
        del entry[later]
    (first / "results.json").write_text(json.dumps({"evaluations": [entry]}))
    assert main(["compare", str(first), str(second)]) == 0
    assert "only the seeds of the starts were compared" in capsys.readouterr().out


def test_runs_that_cannot_be_compared_are_short_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = write_run(tmp_path / "a", [True] * 3), write_run(tmp_path / "b", [True] * 4)
    results = second / "results.json"
    results.write_text(re.sub('"fingerprint": "[^"]*"', '"fingerprint": null', results.read_text()))
    cases = [
        (["--policy", "warm-started"], "has no results of the policy 'warm-started'; it has final"),
        ([], "default at T=0.5: the policies were not played on the same starts: 1 seeds"),
    ]
    for options, told in cases:
        assert main(["compare", str(first), str(second), *options]) == 2
        assert told in capsys.readouterr().err
    assert main(["compare", str(first), str(tmp_path)]) == 2
    assert "there is no results.json; give the folder of a run" in capsys.readouterr().err
    results.write_text(results.read_text().replace('"default"', '"other"'))
    assert main(["compare", str(first), str(second)]) == 2
    told = "the first has default at T=0.5, the second other at T=0.5"
    assert told in capsys.readouterr().err
    results.write_text("[1]")
    assert main(["compare", str(first), str(second)]) == 2
    assert "holds no results of ragen-pl" in capsys.readouterr().err
    assert main(["compare", str(first), str(second), "--jsen"]) == 2
    assert "compare: unknown option --jsen; did you mean --json?" in capsys.readouterr().err
