"""The arms of the learning benchmark have the configuration of their names, the same start, and
equal seconds; its tables compare them on the same rooms."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchmarks.core_seconds import CoreSeconds
from benchmarks.grid import Cell, Grid
from benchmarks.learning import (
    ARMS,
    PILOT_ITERATIONS,
    Study,
    cell,
    main,
    pilot,
    reference_cells,
    runs,
    seconds_per_iteration,
    warm_start,
    warm_start_name,
)
from benchmarks.learning_curve import CostCurve, cost_curve, draw_costs, eval_scores
from benchmarks.learning_report import Finding, leads, markdown, share, write_report
from ragen_pl.rollout.curriculum import LearningProgress, LevelReplay, TargetSuccess, Uniform
from ragen_pl.training.evaluation.results import EvalResult, PolicyResult, summarize
from ragen_pl.training.trainer import rollout_callbacks
from tests.cli.test_configs import assemble
from tests.support.doubles import make_group

PLAN = Study(seeds=(4, 5), split="tuning", given=30)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- the runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_has_the_configuration_of_its_name(tmp_path: Path, name: str) -> None:
    app = assemble(*cell(PLAN, name, 4, 30, tmp_path).arguments)
    data, optimization = app.datamodule, app.model.optimization
    assert (data.hindsight is None) == name.startswith("rl")
    assert (app.model.algorithm.thought_advantage is not None) == name.endswith("grounded")
    if data.hindsight is not None:
        assert data.hindsight.alone == (name == "hindsight")
        assert data.hindsight.symmetries == (name != "both_no_symmetries")
    curricula = {
        "both_uniform": Uniform,
        "both_progress": LearningProgress,
        "both_replay": LevelReplay,
    }
    chosen = app.config.fit.data.curriculum.class_path
    assert chosen.endswith(f".{curricula.get(name, TargetSuccess).__name__}")
    assert (optimization.muon is None) == (name == "both_adamw")
    assert data.warm_start.iterations == (30 if name == "imitation" else 0)
    start = tmp_path / warm_start_name(4) / "policy" / "last"
    assert app.model.trainable.policy.weights == str(start)
    assert (app.trainer.max_epochs, app.model.seed) == (30, 4)
    assert [(key, env.split) for key, env in data.eval_sets.items()] == [("default", "tuning")]
    kinds = [type(callback) for callback in rollout_callbacks(app.trainer)]
    assert kinds.count(CoreSeconds) == 1


def test_the_warm_start_is_the_experiments_and_speaks_the_same_words(tmp_path: Path) -> None:
    before = assemble(*warm_start(PLAN, 4).arguments)
    after = assemble(*cell(PLAN, "both", 4, 30, tmp_path).arguments)
    plain = assemble("--config", "sokoban")
    assert before.datamodule.warm_start == plain.datamodule.warm_start
    assert before.datamodule.warm_start.iterations == before.trainer.max_epochs
    assert list(before.datamodule.vocabulary()) == list(after.datamodule.vocabulary())
    whole = Study()
    assert whole.iterations + whole.warm_iterations == plain.trainer.max_epochs


def test_an_overlay_sets_the_length(tmp_path: Path) -> None:
    overlay = tmp_path / "short.yaml"
    overlay.write_text(
        yaml.safe_dump({"trainer": {"max_epochs": 9}, "data": {"warm_start": {"iterations": 2}}})
    )
    study = Study(overlays=(str(overlay),))
    assert (study.warm_iterations, study.iterations) == (2, 7)


def finish(folder: Path, done: Cell, content: dict[str, Any]) -> None:
    """Let a cell have been run."""
    grid = Grid(folder)
    place = folder / done.name
    place.mkdir(parents=True)
    grid.log(done).write_text(shlex.join(grid.line(done)) + "\n")
    (place / "results.json").write_text(json.dumps({"status": "finished", **content}))


def spent(*seconds: float) -> dict[str, Any]:
    return {"costs": {"core_seconds": list(seconds), "trajectories": [0] * len(seconds)}}


def test_every_arm_gets_the_seconds_of_both(tmp_path: Path) -> None:
    study = Study(("both", "rl"), (4, 5), given=30)
    assert [(run.arm, run.seed) for run in runs(study, tmp_path)] == [("both", 4), ("both", 5)]
    first, second = reference_cells(study, tmp_path)
    finish(tmp_path, first, spent(3.0, 90.0))
    finish(tmp_path, second, spent(3.0, 60.0))
    warmup = [100.0 * number for number in range(PILOT_ITERATIONS // 2)]
    late = [warmup[-1] + 1.5 * (1 + number) for number in range(PILOT_ITERATIONS // 2)]
    timed = spent(*warmup, *late)
    assert seconds_per_iteration(timed) == 1.5
    finish(tmp_path, pilot(study, "rl", tmp_path), timed)
    planned = {(run.arm, run.seed): run.iterations for run in runs(study, tmp_path)}
    assert planned == {("both", 4): 30, ("rl", 4): 60, ("both", 5): 30, ("rl", 5): 40}
    equal = Study(("both", "rl"), (4, 5), given=30, equal="iterations")
    assert {run.iterations for run in runs(equal, tmp_path)} == {30}


def test_an_unknown_arm_is_a_short_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "nothing"])
    assert "there is no arm 'nothing'" in capsys.readouterr().err
    assert main([str(tmp_path), "rl", "--report"]) == 0
    assert "nothing to report" in capsys.readouterr().out


# --- the clock ----------------------------------------------------------------------------------


def test_the_clock_stops_for_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    clock, trainer = CoreSeconds(), SimpleNamespace(loggers=[], callback_metrics={})
    given: tuple[Any, Any] = (trainer, None)

    def work(seconds: float) -> None:
        now[0] += seconds

    work(50)  # set-up
    clock.on_rollout_start(*given, 0, 8)
    work(2)
    clock.on_collection_end(*given, [make_group([0.0, 1.0])])
    clock.on_evaluation_start(*given, "untrained")
    work(30)
    clock.on_train_batch_start(*given, None, 0)
    work(1)
    clock.on_train_epoch_end(*given)
    work(0.5)  # such as the choice of the next starts
    clock.on_rollout_start(*given, 1, 8)
    clock.on_collection_end(*given, [make_group([0.0, 1.0])] * 2)
    clock.on_validation_start(*given)
    work(30)
    clock.on_validation_end(*given)
    work(0.25)
    clock.on_train_epoch_end(*given)
    assert clock.results() == {
        "costs": {"core_seconds": [3.0, 3.75], "trajectories": [2, 6]},
    }


# --- tables and figure --------------------------------------------------------------------------


def result(*wins: bool) -> EvalResult:
    return summarize([make_group([float(win)], seed=i) for i, win in enumerate(wins)])


def finding(arm: str, seed: int, after: EvalResult) -> Finding:
    weak = dict.fromkeys((0.5, 1.0, 0.0), result(True, False, False, False))
    strong = dict.fromkeys((0.5, 1.0, 0.0), after)
    curve = CostCurve((0.0, 10.0), (0, 240), (0.25, after.success))
    return Finding(arm, ARMS[arm].title, seed, 30, 10.0, 240, 6.0, weak, strong, curve)


def test_the_lead_is_paired_over_rooms_and_pooled_over_seeds() -> None:
    found = [
        finding("both", 0, result(True, True, True, False)),
        finding("both", 1, result(True, True, True, True)),
        finding("rl", 0, result(True, True, False, False)),
        finding("rl", 1, result(True, False, False, True)),
        finding("imitation", 2, result(True, True, True, True)),  # has no counterpart
    ]
    ahead = leads(found)
    assert [(lead.arm, lead.temperature) for lead in ahead] == [("rl", t) for t in (0.0, 0.5, 1.0)]
    pooled = ahead[0].pooled  # four rooms, two trajectories of each
    assert pooled.mean == 0.375
    assert pooled.low == pytest.approx(-0.073, abs=0.001)
    assert pooled.high == pytest.approx(0.678, abs=0.001)
    assert (pooled.count, dict(ahead[0].by_seed)) == (4, {0: 0.25, 1: 0.5})
    text = markdown(found, ahead, "tuning")
    assert "on 4 tuning rooms" in text
    assert "| before: the warm start | 3 | – | 6 | – | 25.0 [25.0, 25.0] |" in text
    assert "| RL alone | 2 | 30 | 10 | 240 | 50.0 [50.0, 50.0] |" in text
    assert "| RL alone | greedy | +37.5 [-7.3, +67.8] | +25.0, +50.0 |" in text
    assert (share([0.5]), share([])) == ("50.0", "–")


def test_the_report_of_runs_in_folders(tmp_path: Path) -> None:
    study = Study(("both",), (0,), given=4, equal="iterations")

    def entries(policy: str, *wins: bool) -> list[dict[str, Any]]:
        scored = result(*wins)
        return [PolicyResult(policy, "default", t, scored).to_dict() for t in (0.5, 1.0, 0.0)]

    (run,), start = list(runs(study, tmp_path)), warm_start(study, 0)
    finish(tmp_path, start, {"evaluations": entries("warm-started", True, False), **spent(7.0)})
    history = {
        f"val/default/{name}": [None, 0.5, 0.5, 0.75, 0.75]
        for name in ("success", "success_low", "success_high")
    }
    costs: dict[str, list[float]]
    costs = {"core_seconds": [1.0, 2.0, 3.0, 4.0, 5.0], "trajectories": [8, 16, 24, 32, 40]}
    facts = {"history": history, "costs": costs, "evaluations": entries("final", True, True)}
    finish(tmp_path, run.cell, facts)
    config = {
        "trainer": {"check_val_every_n_epoch": 2},
        "data": {"evaluation": {"temperature": 0.5}},
    }
    (tmp_path / run.cell.name / "config.yaml").write_text(yaml.safe_dump(config))
    write_report(tmp_path, [run], {0: start}, "eval")
    (line,) = json.loads((tmp_path / "learning.json").read_text())["runs"]
    assert (line["core_seconds"], line["trajectories"]) == (5.0, 40)
    assert line["start_core_seconds"] == 7.0
    assert (line["before"]["0.5"]["success"], line["after"]["0"]["success"]) == (0.5, 1.0)
    # Iterations 2 and 4 were evaluated; the last one, the fifth, when the run had ended.
    assert line["curve"]["success"] == [0.5, 0.5, 0.75, 1.0]
    assert line["curve"]["core_seconds"] == [0.0, 2.0, 4.0, 5.0]
    assert "RL and hindsight imitation" in (tmp_path / "learning.md").read_text()
    place, content = tmp_path / run.cell.name, json.loads(json.dumps(facts))
    points = [(score.place, score.success) for score in eval_scores(place, content, "default")]
    assert points == [(1, 0.5), (3, 0.75), (4, 1.0)]
    content["costs"] = {name: values[:4] for name, values in costs.items()}
    content["history"] = {name: values[:4] for name, values in history.items()}
    assert cost_curve(place, content, "default", 0.5).success == (0.5, 0.5, 0.75)


def test_the_figure_over_costs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = [
        ("both", CostCurve((0.0, 10.0), (0, 240), (0.2, 0.9))),
        ("imitation", CostCurve((0.0, 12.0), (0, 0), (0.2, 0.4))),
        ("both", CostCurve((0.0, 11.0), (0, 240), (0.2, 0.8))),
    ]
    draw_costs(tmp_path / "figure.png", "title", curves)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
