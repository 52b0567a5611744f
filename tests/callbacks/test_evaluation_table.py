"""An evaluation by itself is told apart from the training it is of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from callbacks import EvaluationTable
from ragen_pl.cli.entry_point import main
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.results import PolicyResult
from ragen_pl.training.evaluation.sets import EvaluationConfig
from tests.support.doubles import make_trainer
from tests.support.tiny_run import write_config
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner


def test_an_evaluation_does_not_log_into_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    assert main(["fit", "--config", "tiny", "--trainer.max_epochs", "1"]) == 0
    run_dir = tmp_path / "runs/tiny"
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    evaluate = ["validate", "--config", "tiny", "--ckpt_path"]
    capsys.readouterr()
    assert main([*evaluate, "last"]) == 0
    assert "biased upwards" not in capsys.readouterr().out
    after = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    written = {run_dir / "evaluations" / name for name in ("last.json", "last.txt")}
    kept = ("last-default-T0.5", "last-default-T0", "random-default", "expert-default")
    written |= {run_dir / "trajectories" / f"validate-{name}.jsonl" for name in kept}
    assert after.keys() - before.keys() == written
    assert {path: after[path] for path in before} == before
    line = (run_dir / "trajectories/validate-last-default-T0.jsonl").read_text().splitlines()[0]
    record = json.loads(line)
    place = "runs/tiny/checkpoints/last.ckpt"  # not the policy that is being trained
    assert (record["policy"], record["temperature"], record["iteration"]) == (place, 0.0, 1)
    check_results(run_dir)
    assert main([*evaluate, "best", "--trainer.logger", "true"]) == 0
    assert "biased upwards" in capsys.readouterr().out
    assert all(path.read_bytes() == held for path, held in before.items())
    logged = EventAccumulator(str(run_dir / "tensorboard-validate")).Reload()
    steps = [event.step for event in logged.Scalars("val/default/success")]
    assert steps == [1]  # iteration, of three updates
    assert "step" not in logged.Tags()["scalars"]
    check_that_of_another_run(tmp_path, run_dir)
    assert main([*evaluate, "null"]) == 0
    content = json.loads((run_dir / "evaluations/untrained.json").read_text())
    found = [(entry["policy"], entry["temperature"]) for entry in content["evaluations"]]
    baselines = [("random", None), ("expert", None)]
    assert found == [("untrained", 0.5), ("untrained", 0.0), *baselines]


def check_results(run_dir: Path) -> None:
    """The checkpoint's scores, sampled and greedy, stand beside baselines and earlier policies.

    The first sample of every start is the one that the run's own evaluation took.
    """
    content = json.loads((run_dir / "evaluations/last.json").read_text())
    results = [PolicyResult.from_dict(entry) for entry in content["evaluations"]]
    path = str(Path("runs/tiny/checkpoints/last.ckpt"))
    assert content["policy"] == path
    assert [(each.policy, each.temperature) for each in results] == [
        *((path, 0.5), (path, 0.0), ("random", None), ("expert", None), ("untrained", 0.5)),
    ]
    sampled, greedy, *_ = results
    assert (sampled.result.count, list(sampled.result.pass_at)) == (24, [1, 2, 4])
    assert (greedy.result.count, list(greedy.result.pass_at)) == (6, [1])
    assert (sampled.iterations, results[2].iterations) == (1, None)
    assert len({each.fingerprint for each in results}) == 1
    table = (run_dir / "evaluations/last.txt").read_text()
    assert f"default ({sampled.fingerprint})" in table
    assert "pass@4" in table


def check_that_of_another_run(folder: Path, run_dir: Path) -> None:
    """A checkpoint of the same name leaves the scores of the run's own, and has no part in its
    scores before training."""
    own = (run_dir / "evaluations/last.json").read_bytes()
    Path("other").mkdir()
    shutil.copy(run_dir / "checkpoints/last.ckpt", folder / "other/last.ckpt")
    assert main(["validate", "--config", "tiny", "--ckpt_path", "other/last.ckpt"]) == 0
    assert (run_dir / "evaluations/last.json").read_bytes() == own
    content = json.loads((run_dir / "evaluations/other_last.ckpt.json").read_text())
    policies = {PolicyResult.from_dict(entry).policy for entry in content["evaluations"]}
    assert policies == {"other/last.ckpt", "random", "expert"}


def test_what_this_process_has_trained_is_not_called_untrained(tmp_path: Path) -> None:
    """``trainer.validate`` right after ``trainer.fit``, as a script of one's own may have it."""
    data = RolloutDataModule(
        env=NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        evaluation=EvaluationConfig(size=2),
        rollout=RolloutConfig(num_groups=2, group_size=2, max_turns=2, max_context=128),
    )
    module, trainer = make_learner(), make_trainer(tmp_path, 2, [EvaluationTable()])
    trainer.fit(module, datamodule=data)
    trainer.validate(module, datamodule=data)
    content = json.loads((tmp_path / "evaluations/iteration-2.json").read_text())
    own = [entry for entry in content["evaluations"] if entry["policy"] == "iteration-2"]
    assert [entry["iterations"] for entry in own] == [2, 2]
