"""Several runs beside each other: differences paired by start, and settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ragen_pl.report.run_data import RunData, RunReader
from ragen_pl.report.side_by_side import compare_scores, differing_settings
from tests.support.report_runs import evaluation, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return RunReader(write_run(tmp_path_factory.mktemp("beside") / "run")).read()


def test_a_difference_is_paired_by_start(run: RunData) -> None:
    first = evaluation("final", list(range(40)), list(range(40, 100)))
    better = evaluation("final", list(range(80)), list(range(80, 100)))
    same = evaluation("final", [*range(39), 40], [39, *range(41, 100)])
    (row,) = compare_scores([replace(run, evaluations=(each,)) for each in (first, better, same)])
    assert (row.policy, row.eval_set, row.temperature) == ("final", "default", 0.5)
    cells = [cell for cell in row.cells if cell is not None]
    assert cells[0].difference is None
    assert cells[1].difference is not None
    assert cells[1].difference.mean == pytest.approx(0.4)
    assert [cell.verdict for cell in cells] == ["", "better", "no difference shown"]


def test_other_starts_are_not_paired(run: RunData) -> None:
    runs = [
        replace(run, evaluations=(evaluation("final", [1], [2]),)),
        replace(run, evaluations=(evaluation("final", [1], [3]),)),
        replace(run, evaluations=()),
    ]
    (row,) = compare_scores(runs)
    assert row.cells[1] is not None
    assert (row.cells[1].difference, row.cells[1].remark) == (None, "other starts")
    assert row.cells[2] is None


def test_differences_are_to_the_first_run_alone(run: RunData) -> None:
    scored = replace(run, evaluations=(evaluation("final", [1], [2]),))
    (row,) = compare_scores([replace(run, evaluations=()), scored, scored])
    assert row.cells[0] is None
    for cell in row.cells[1:]:
        assert cell is not None
        assert (cell.difference, cell.verdict) == (None, "")


def test_settings_that_differ(run: RunData) -> None:
    other = replace(
        run, config={**run.config, "run_dir": "y", "seed_everything": 1, "extra": {"k": 2}}
    )
    assert differing_settings([run, other]) == [("seed_everything", [0, 1]), ("extra.k", ["–", 2])]
    assert differing_settings([run, run]) == []
