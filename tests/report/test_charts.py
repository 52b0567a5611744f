"""Figures: what they show of a run's metrics."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from ragen_pl.report import charts
from ragen_pl.report.charts.outcomes import _by_difficulty
from ragen_pl.report.recorded_curves import Curve
from ragen_pl.report.run_data import RunData, RunReader
from tests.support.report_runs import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return RunReader(write_run(tmp_path_factory.mktemp("charts") / "run")).read()


def traces(run: RunData, key: str) -> list[dict[str, object]]:
    found = [c for group in charts.learning_charts(run).values() for c in group if c.key == key]
    return list(found[0].traces)


def test_validation_has_its_interval_and_the_evaluations_between(run: RunData) -> None:
    band, points = traces(run, "success")[:2]
    assert points["x"] == [4, 10, 20, 30, 40]  # 4: the warm-started policy
    assert points["y"][0] == 0.25  # type: ignore[index]
    assert band["x"] == [4, 10, 20, 30, 40, 40, 30, 20, 10, 4]


@pytest.mark.parametrize("has_curriculum", [True, False])
def test_a_curriculum_is_named_where_there_is_one(run: RunData, has_curriculum: bool) -> None:
    curves = {k: v for k, v in run.curves.items() if k != "rollout/success_uniform"}
    if has_curriculum:
        curves["rollout/success_uniform"] = curves["rollout/success"]
    learning = charts.learning_charts(replace(run, curves=curves)).values()
    (chart,) = [c for group in learning for c in group if c.key == "success"]
    assert ("whose starts a curriculum chooses" in chart.text) == has_curriculum
    assert "training rollouts" in chart.text


def test_baselines_are_level(run: RunData) -> None:
    (random,) = [t for t in traces(run, "success") if t["meta"]["kind"] == "dash"]  # type: ignore[index]
    assert (random["name"], random["y"]) == ("random, default", [0.0, 0.0])


def test_equal_baselines_are_one_line(run: RunData) -> None:
    """As in the bandit, where their names would be written over each other."""
    expert = replace(run.evaluations[0], policy="expert")
    both = replace(run, evaluations=(*run.evaluations, expert))
    (line,) = [t for t in traces(both, "success") if t["meta"]["kind"] == "dash"]  # type: ignore[index]
    assert line["name"] == "random and expert, default"


def test_the_phases_of_an_iteration_add_up_to_it(run: RunData) -> None:
    known = replace(run, seconds_of_iterations={10: 5.0})
    phases = charts.phase_seconds(known)
    assert sum(values.get(10, 0.0) for values in phases.values()) == pytest.approx(5.0)
    assert phases["warm start"] == dict.fromkeys(range(1, 5), 1.0)
    assert phases["evaluate and save"] == {10: pytest.approx(3.3)}


def test_a_long_curve_is_thinned_to_means() -> None:
    count = 10 * charts.MAX_POINTS
    curve = Curve(tuple(range(count)), tuple(float(k % 10) for k in range(count)))
    faint, smooth = charts.line(curve, "x", 0)
    assert len(faint["x"]) == charts.MAX_POINTS
    assert set(faint["y"]) == {4.5}
    assert smooth["customdata"] == faint["y"]


def test_names_are_no_markup() -> None:
    assert (
        charts.label("<a href='javascript:1'>x</a>\u202e")
        == "&lt;a href='javascript:1'&gt;x&lt;/a&gt;⟨U+202E⟩"
    )


def test_difficulties_sort_by_number() -> None:
    names = ["9-10", "2-3", "hard", "10-12", "²"]  # the last is a digit, but no decimal one
    assert sorted(names, key=charts.difficulty_order) == ["2-3", "9-10", "10-12", "hard", "²"]


def test_difficulties_of_a_mixture_are_listed_by_environment() -> None:
    names = ("lake/1-2", "sokoban/10-12", "lake/3-4", "sokoban/2-3")
    curves = {f"rollout/success_at/{name}": Curve((3, 4), (0.5, 0.5)) for name in names}
    chart = _by_difficulty(cast(RunData, SimpleNamespace(curves=curves)), {})
    assert [each["name"] for each in chart.traces] == [
        *("lake/1-2", "lake/3-4", "sokoban/2-3", "sokoban/10-12")
    ]


def with_kl(run: RunData, updates: float) -> RunData:
    """Return a run whose collections make so many updates, the only two KL metrics 0 and 0.004."""
    values = {
        **{"train/updates": updates, "train/approx_kl": 0.0, "train/clip_fraction": 0.0},
        **{"train/update_kl": 0.004},
    }
    return replace(run, curves={name: Curve((5, 6), (v, v)) for name, v in values.items()})


@pytest.mark.parametrize(
    ("updates", "kl", "drawn"), [(1.0, [[0.004] * 2], 0), (2.0, [[0.0] * 2, [0.004] * 2], 1)]
)
def test_a_single_update_is_shown_by_its_measured_kl(
    run: RunData, updates: float, kl: list[list[float]], drawn: int
) -> None:
    """The averaged KL and the clip fraction are 0 by definition there, and would look like data."""
    known = with_kl(run, updates)
    found = {c.key: c for group in charts.learning_charts(known).values() for c in group}
    assert [trace["y"] for trace in found["kl"].traces] == kl
    assert len([key for key in found if key == "clip"]) == drawn


def test_runs_of_one_and_of_several_updates_are_compared_by_what_each_measures(
    run: RunData,
) -> None:
    compared = charts.comparison_charts([with_kl(run, 1.0), with_kl(run, 2.0)], ["one", "two"])
    (chart,) = [each for each in compared if each.key == "train/approx_kl"]
    assert [trace["y"] for trace in chart.traces] == [[0.004] * 2, [0.0] * 2]
