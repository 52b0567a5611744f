"""The numbers a run is judged by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ragen_pl.report.headline import alarm, duration, gains, quantity, thoughts, unique_names
from ragen_pl.report.recorded_curves import Curve
from ragen_pl.report.run_data import RunData, RunReader
from tests.support.report_runs import evaluation, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return RunReader(write_run(tmp_path_factory.mktemp("headline") / "run")).read()


def test_success_before_and_after(run: RunData) -> None:
    (gain,) = gains(run)
    assert gain.before is not None
    assert gain.after is not None
    assert (gain.before.value, gain.after.value) == (0.25, 0.75)
    assert [score.name for score in gain.levels] == ["random", "warm-started", "final"]


def test_a_running_run_has_its_latest_validation(run: RunData) -> None:
    (gain,) = gains(replace(run, evaluations=run.evaluations[:2]))
    assert gain.after is not None
    assert gain.after.name == "iteration 40"
    assert gain.after.value == pytest.approx(40 / 60)


def test_before_and_after_are_of_one_temperature(run: RunData) -> None:
    """Validations are at another one than the first scores: the policy before was scored there,
    too, or is left out."""
    config = {"data": {"evaluation": {"temperature": 1.0}}}
    running = replace(run, evaluations=run.evaluations[:2], config=config)
    (gain,) = gains(running)
    assert gain.before is None
    assert [score.name for score in gain.levels] == ["random", "iteration 40"]
    warm = evaluation("warm-started", [1, 2], [3, 4], 1.0)
    (gain,) = gains(replace(running, evaluations=(*running.evaluations, warm)))
    assert gain.before is not None
    assert gain.before.value == 0.5


def test_a_run_that_goes_on_has_the_newest_score(run: RunData) -> None:
    final = run.evaluations[-1]
    older = replace(final, iterations=24)
    (gain,) = gains(replace(run, evaluations=(*run.evaluations[:-1], older)))
    assert gain.after is not None
    assert gain.after.name == "iteration 40"  # the latest validation
    curves = {name: curve for name, curve in run.curves.items() if not name.startswith("val/")}
    (gain,) = gains(replace(run, evaluations=(*run.evaluations[:-1], older), curves=curves))
    assert gain.after is not None
    assert (gain.after.name, gain.after.value) == ("final, iteration 24", 0.75)


def test_thoughts_are_of_the_policies_of_the_headline(run: RunData) -> None:
    accuracy = Curve((10, 40), (0.5, 0.6))
    curves = {**run.curves, "val/default/thought_accuracy": accuracy}
    assert thoughts(replace(run, curves=curves)) == (0.25, 0.25)
    assert thoughts(replace(run, curves=curves, evaluations=run.evaluations[:2])) == (0.25, 0.6)


def test_stretches_of_the_alarm_have_their_reasons(run: RunData) -> None:
    levels = Curve(tuple(range(1, 8)), (0.0, 1.0, 1.0, 2.0, 0.0, 1.0, 0.0))
    curves = {**run.curves, "collapse/level": levels}
    found = alarm(replace(run, curves=curves))
    assert found is not None
    assert [(s.level, s.first, s.last) for s in found.stretches] == [
        ("amber", 2, 3),
        ("red", 4, 4),
        ("amber", 6, 6),
    ]
    assert (found.now, found.worst) == ("green", "red")
    assert dict(found.counts) == {"green": 3, "amber": 3, "red": 1}
    stated = alarm(run)
    assert stated is not None
    assert [stretch.reason for stretch in stated.stretches] == ["success fell"]


def test_a_run_without_the_alarm_has_none(run: RunData) -> None:
    assert alarm(replace(run, curves={})) is None


def test_words() -> None:
    assert [duration(s).replace("\u00a0", " ") for s in (5.25, 59, 610, 7300, 200_000)] == [
        "5.2 s",
        "59 s",
        "10 min 10 s",
        "2 h 1 min",
        "2 d 7 h",
    ]
    assert [quantity(c).replace("\u202f", " ") for c in (12, 999, 24_720, 7.7e5)] == [
        "12",
        "999",
        "24.7 k",
        "770 k",
    ]


def test_runs_of_one_name_are_told_apart(run: RunData) -> None:
    same = [replace(run, path=Path("/a/run")), replace(run, path=Path("/b/run"))]
    assert unique_names(same) == ["a/run", "b/run"]
    assert unique_names([run]) == ["run"]
