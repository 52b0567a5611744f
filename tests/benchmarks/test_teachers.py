"""The runs of the study of teachers have the teachers of their names, its table their scores."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from benchmarks.grid import Grid
from benchmarks.teachers import TASKS, TEACHERS, TEMPERATURES, Study, arguments, main, runs
from benchmarks.teachers import write_report as write_teachers
from ragen_pl.rollout.teachers.explorer import Explorer
from ragen_pl.rollout.teachers.solver import Solver
from ragen_pl.rollout.teachers.world_model import WorldModel
from ragen_pl.training.evaluation.results import PolicyResult, summarize
from tests.cli.test_configs import assemble
from tests.support.doubles import make_group
from tests.support.extras import need_packages


@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((name, "sokoban") for name in TEACHERS),
        *(("explorer_hindsight", task) for task in TASKS),
        *(("self_distillation", task) for task in ("frozen_lake", "rubik")),  # whole dialogues
    ],
)
def test_a_run_has_the_teacher_of_its_name(name: str, task: str) -> None:
    need_packages(task)
    app = assemble(*arguments(Study(given=7), task, name, 3))
    data = app.datamodule
    teacher = {"explorer": Explorer, "world_model": WorldModel}
    wanted = next((kind for word, kind in teacher.items() if name.startswith(word)), Solver)
    assert isinstance(data.warm_start.teacher, wanted)
    assert (data.hindsight is not None) == name.endswith("hindsight")
    assert (data.distillation is not None) == (name == "self_distillation")
    assert (data.warm_start.iterations == 0) == (name == "none")
    assert app.trainer.max_epochs == data.warm_start.iterations + 7
    assert app.model.seed == 3


def test_a_task_without_a_solver_is_taught_by_explorers_alone() -> None:
    need_packages("minigrid_door_key")
    planned = list(runs(Study(tasks=("minigrid_door_key",), seeds=(0,))))
    assert [run.teacher for run in planned] == ["none", "explorer", "explorer_hindsight"]
    data = assemble(*planned[1].cell.arguments).datamodule
    assert isinstance(data.warm_start.teacher, Explorer)
    assert data.warm_start.teacher.agent == "PPO"


def test_the_table_has_medians_over_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study(("none", "solver"), ("sokoban",), (0, 1))
    planned = list(runs(study))
    assert main([str(tmp_path), "--report"]) == 0
    assert "nothing to report" in capsys.readouterr().out

    def entries(policy: str, wins: int) -> list[dict[str, object]]:
        groups = [make_group([float(i < wins)], seed=i) for i in range(4)]
        scored = summarize(groups)
        return [PolicyResult(policy, "default", t, scored).to_dict() for t in TEMPERATURES]

    for run, wins in zip(planned, (0, 2, 1, 3), strict=True):
        start = "untrained" if run.teacher == "none" else "warm-started"
        content = {
            "status": "finished",
            "seconds": 20.0,
            "costs": {"core_seconds": [1.0, 10.0], "trajectories": [8, 16]},
            "evaluations": [*entries(start, 0), *entries("final", wins)],
        }
        grid, place = Grid(tmp_path), tmp_path / run.cell.name
        place.mkdir(parents=True)
        grid.log(run.cell).write_text(shlex.join(grid.line(run.cell)) + "\n")
        (place / "results.json").write_text(json.dumps(content))
    write_teachers(tmp_path, planned)
    text = (tmp_path / "teachers.md").read_text()
    assert "sokoban: success on 4 starts" in text
    spread = "62.5 [50.0, 75.0] | 62.5 [50.0, 75.0]"
    assert f"| solver | 2 | 0.0 [0.0, 0.0] | 0.0 [0.0, 0.0] | {spread} |" in text
    assert len(json.loads((tmp_path / "teachers.json").read_text())) == 4


def test_an_unknown_teacher_is_a_short_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "nobody"])
    assert "there is no teacher 'nobody'" in capsys.readouterr().err
