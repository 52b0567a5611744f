"""What stands still is told, with where it stands, and forgotten when it moves."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from callbacks import Watchdog, watchdog
from callbacks.watchdog import FOLDER, RankWatch, Stall, describe, read_stalls


class Still:
    """A process that has stood for so many seconds."""

    def __init__(self, place: str) -> None:
        self.seconds, self._place = 0.0, place

    def look(self) -> float:
        return self.seconds

    def place(self) -> str:
        return self._place

    def stacks(self) -> str:
        return f"MainThread:\n  in {self._place}"


@pytest.fixture(autouse=True)
def _iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "learner", lambda module: SimpleNamespace(iteration=11))


def test_the_first_rank_tells_where_each_stands_until_they_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 1 hangs in its environment; the others wait for it."""
    monkeypatch.setattr(watchdog, "world_size", lambda: 3)
    places = ["gather_objects (collectives.py:38)", "step (my_env.py:40)"]
    stills = [Still(places[0]), Still(places[1]), Still(places[0])]
    ranks = []
    for number, still in enumerate(stills):
        monkeypatch.setattr(watchdog, "rank", lambda number=number: number)
        ranks.append(RankWatch(120.0, tmp_path, cast(Any, None), cast(Any, still)))

    def look(seconds: float) -> list[str]:
        caplog.clear()
        monkeypatch.setattr(time, "time", lambda: 1e9 + seconds)
        for each, still in zip(ranks, stills, strict=True):
            still.seconds = seconds
            each.look()
        return [record.getMessage() for record in caplog.records]

    assert look(119.0) == []
    assert not list(tmp_path.iterdir())
    assert look(120.0) == [], "the first rank waits until the others have seen it, too"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank1.txt", "rank2.txt"]
    (told,) = look(140.0)
    assert told.startswith("standing still for 140 s: rank 1 (on ")
    assert ") in step (my_env.py:40), rank 0 (on " in told
    assert told.endswith(f") in gather_objects (collectives.py:38); stacks: {tmp_path}")
    assert "iteration 12" in (tmp_path / "rank1.txt").read_text()
    assert "MainThread" in (tmp_path / "rank0.txt").read_text()
    assert look(150.0) == [], "once, until it has lasted twice as long"
    (told,) = look(270.0)
    assert told.startswith("standing still for 270 s")
    assert look(0.0) == look(1.0) == []
    assert not list(tmp_path.iterdir())
    assert look(120.0) == []
    assert len(look(140.0)) == 1, "another time"


def test_a_run_whose_disk_is_full_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        assert caplog.records, "the warning comes first: a disk may not answer at all"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(watchdog, "write_text", full)
    still = Still("save (my_env.py:7)")
    watch = RankWatch(10.0, tmp_path, cast(Any, None), cast(Any, still))
    still.seconds = 12.0
    watch.look()
    (record,) = caplog.records
    told = f"standing still for 12 s: save (my_env.py:7); stacks: {tmp_path}"
    assert record.getMessage() == told


def test_ranks_of_one_place_are_told_together_and_those_without_a_word_first() -> None:
    stalls = [
        Stall(n, f"n{n // 8}", "gather (c.py:1)", 120.0) for n in range(64) if n not in (7, 9)
    ]
    told = describe([*stalls, Stall(7, "n0", "step (e.py:4)", 120.0)], 64)
    assert told == (
        "no word of rank 9, rank 7 (on n0) in step (e.py:4), ranks 0-6, 8, 10-63 in gather (c.py:1)"
    )
    assert describe([Stall(0, "n0", "step (e.py:4)", 120.0)], 1) == "step (e.py:4)"


def test_other_files_are_no_ranks(tmp_path: Path) -> None:
    (tmp_path / "rankings.txt").write_text("place\nhost\n")
    (tmp_path / "rank3.txt").write_text("")
    (tmp_path / "rank4.txt").write_text("step (e.py:4)\nn0\n7.0\n")
    assert [stall.rank for stall in read_stalls(tmp_path)] == [4]


def test_a_process_that_stands_is_watched_from_its_set_up_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    trainer, module = cast(Any, SimpleNamespace(default_root_dir=str(tmp_path))), cast(Any, None)
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "rank5.txt").write_text("of a run that was killed\nhost\n0.0\n")
    dog = Watchdog(after_s=0.3)
    dog.setup(trainer, module, "fit")
    time.sleep(1.0)
    told = [record.getMessage() for record in caplog.records if "standing" in record.message]
    assert "s: test_a_process_that_stands" in told[0]
    assert "time.sleep(1.0)" in (folder / "rank0.txt").read_text()
    dog.teardown(trainer, module, "fit")
    assert not list(folder.iterdir())
    dog.teardown(trainer, module, "fit")


def test_an_evaluation_is_not_watched(tmp_path: Path) -> None:
    """It may play beside a training run, in the same folder."""
    trainer, folder = cast(Any, SimpleNamespace(default_root_dir=str(tmp_path))), tmp_path / FOLDER
    folder.mkdir()
    (folder / "rank0.txt").write_text("of the training run\nhost\n0.0\n")
    dog = Watchdog(after_s=0.1)
    dog.setup(trainer, cast(Any, None), "validate")
    time.sleep(0.3)
    dog.teardown(trainer, cast(Any, None), "validate")
    assert (folder / "rank0.txt").read_text().startswith("of the training run")


@pytest.mark.parametrize("after_s", [0.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(after_s: float) -> None:
    with pytest.raises(ValueError, match=r"^after_s is .*; it must be above 0 and finite"):
        Watchdog(after_s)
