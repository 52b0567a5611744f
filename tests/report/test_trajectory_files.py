"""Files of trajectories: read strictly, bounded in size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.report import trajectory_files as files
from ragen_pl.runtime.durable_files import write_lines
from ragen_pl.types import TRAJECTORY_SCHEMA

LINE = 100
"""Bytes of a line here."""


def line(group: int) -> str:
    text = json.dumps({"group": group, "fill": ""})
    return text.replace('""', '"' + "x" * (LINE - len(text) - 1) + '"') + "\n"


def make(folder: Path, name: str, groups: int) -> Path:
    path = folder / name
    write_lines(path, (line(group) for group in range(groups)))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def count(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "no JSON"),
        ("[]", "None"),
        ('{"seed": 1}', "None"),
        ('{"schema": "ragen-pl.trajectory/2"}', "trajectory/2"),
    ],
)
def test_a_foreign_line_is_refused_with_its_place(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"schema": TRAJECTORY_SCHEMA}) + "\n" + content + "\n")
    with pytest.raises(ConfigError, match=rf"a\.jsonl:2: .*{fault}"):
        list(files.read_records(path))


def test_names_keep_evaluation_sets_apart(tmp_path: Path) -> None:
    sets = ("default", "a/b", "a_b", "..", "8x8, two boxes", "räume")
    found = {files.evaluation_file("final", each, temperature=0.5) for each in sets}
    assert len(found) == len(sets)
    for name in found:
        make(tmp_path, name, 1)
    assert set(names(tmp_path)) == found
    assert files.evaluation_file("validation", "x", 30) == "validation-00030-x.jsonl"
    assert files.evaluation_file("final", "x", temperature=0.0) == "final-x-T0.jsonl"
    assert files.rollout_file(30) == "rollout-00030.jsonl"


def fill(folder: Path) -> Path:
    """Write a run's files; return the one written last."""
    for name in ("random-a", "untrained-a-T0.5", "predict-a"):
        make(folder, f"{name}.jsonl", 40)
    for iteration in (10, 20, 30):
        make(folder, files.rollout_file(iteration), 4)
        newest = make(folder, files.evaluation_file("validation", "a", iteration), 40)
    return newest


SIZE = (40 * 5 + 4 * 3) * LINE
"""Of everything but the predictions."""


def test_within_the_limit_nothing_changes(tmp_path: Path) -> None:
    newest = fill(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert files.limit_size(tmp_path, SIZE, newest) == []
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_the_oldest_validations_are_thinned_first_and_keep_the_same_starts(tmp_path: Path) -> None:
    newest = fill(tmp_path)
    assert files.limit_size(tmp_path, SIZE - 1, newest) == ["thinned validation-00010-a.jsonl"]
    kept = (tmp_path / "validation-00010-a.jsonl").read_text().splitlines()
    assert [json.loads(each)["group"] for each in kept] == list(range(files.THINNED_TO))
    done = files.limit_size(tmp_path, SIZE - 25 * LINE, newest)
    assert done == ["thinned validation-00020-a.jsonl"]


def test_a_smaller_limit_removes_the_oldest_and_thins_the_others_last(tmp_path: Path) -> None:
    newest = fill(tmp_path)
    done = files.limit_size(tmp_path, 1, newest)
    assert done == [
        "thinned validation-00010-a.jsonl",
        "thinned validation-00020-a.jsonl",
        "removed rollout-00010.jsonl",
        "removed validation-00010-a.jsonl",
        "removed rollout-00020.jsonl",
        "removed validation-00020-a.jsonl",
        "thinned random-a.jsonl",
        "thinned untrained-a-T0.5.jsonl",
    ]
    left = {path.name: count(path) for path in tmp_path.iterdir()}
    assert left == {
        "predict-a.jsonl": 40,
        "random-a.jsonl": 16,
        "rollout-00030.jsonl": 4,
        "untrained-a-T0.5.jsonl": 16,
        "validation-00030-a.jsonl": 40,
    }
    assert files.limit_size(tmp_path, 1, newest) == []  # nothing is left that may be thinned


def test_the_newest_validation_stays_whole_while_rollouts_are_written(tmp_path: Path) -> None:
    fill(tmp_path)
    newest = make(tmp_path, files.rollout_file(40), 4)
    files.limit_size(tmp_path, 1, newest)
    assert count(tmp_path / "validation-00030-a.jsonl") == 40
    assert count(newest) == 4
    assert not (tmp_path / "rollout-00030.jsonl").exists()


def test_every_limit_that_can_be_kept_is_kept(tmp_path: Path) -> None:
    for limit in range(SIZE, 76 * LINE, -7 * LINE):
        newest = fill(tmp_path)
        files.limit_size(tmp_path, limit, newest)
        size = sum(path.stat().st_size for path in tmp_path.glob("*.jsonl"))
        assert size - 40 * LINE <= limit  # without the predictions


@pytest.mark.parametrize("content", ["{", "[1]\n", '{"seed": 1}\n', "räume\n", "3\n"])
def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, content: str) -> None:
    newest = fill(tmp_path)
    (tmp_path / "mine.jsonl").write_text(content * 20, encoding="utf-8")
    files.limit_size(tmp_path, 1, newest)
    assert (tmp_path / "mine.jsonl").read_text(encoding="utf-8") == content * 20


def test_what_an_abandoned_continuation_left_is_removed(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".validation-00010-a.jsonl.tmp").write_text("half a li")
    files.remove_after(tmp_path, 20)
    assert names(tmp_path) == [
        *("predict-a.jsonl", "random-a.jsonl", "rollout-00010.jsonl", "rollout-00020.jsonl"),
        *("untrained-a-T0.5.jsonl", "validation-00010-a.jsonl", "validation-00020-a.jsonl"),
    ]
