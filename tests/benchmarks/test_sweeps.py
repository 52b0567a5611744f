"""The sweeps' runs differ in the swept setting, and can start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper_numbers import PAPER, SOURCES
from benchmarks.sweeps import SWEEPS, Plan, Setting, arguments, start_name, trials, warm_starts
from benchmarks.sweeps_report import Trial, find, markdown
from ragen_pl.algorithms.policy_losses import Clip
from tests.cli.test_configs import assemble

ALL = [(name, setting) for name, settings in SWEEPS.items() for setting in settings]
SPOKEN = {start_name(setting): setting for _, setting in ALL}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("sweep", "setting"), ALL, ids=lambda given: getattr(given, "name", given))
def test_a_setting_makes_a_run_of_equal_length(
    tmp_path: Path, sweep: str, setting: Setting
) -> None:
    app = assemble(*arguments(Plan(), setting, tmp_path, 2))
    rollout = app.datamodule.rollout
    per_update = rollout.num_groups * rollout.group_size
    assert per_update == 32
    assert per_update * rollout.online_k * (app.trainer.max_epochs or 0) == 80 * 128
    critic = app.model.algorithm.critic
    assert critic is None or critic.warmup_iterations * rollout.online_k == 20
    assert app.model.seed == 2
    assert sweep in SOURCES
    if sweep == "clip_higher":
        assert app.model.algorithm.policy_loss == Clip(clip_high=float(setting.name))
    if sweep == "groups":
        assert setting.name == f"{128 // rollout.group_size}x{rollout.group_size}"


@pytest.mark.parametrize("name", SPOKEN)
def test_a_setting_and_its_warm_start_share_a_response_format(tmp_path: Path, name: str) -> None:
    plan = Plan(quick=True)
    (cell,) = [cell for cell in warm_starts(plan) if cell.name == name]
    before = assemble(*cell.arguments)
    after = assemble(*arguments(plan, SPOKEN[name], tmp_path, 0))
    assert list(before.datamodule.vocabulary()) == list(after.datamodule.vocabulary())
    assert before.datamodule.prompts == after.datamodule.prompts
    assert before.datamodule.warm_start.iterations == before.trainer.max_epochs
    assert after.model.trainable.policy.weights == str(tmp_path / name / "policy" / "last")


def test_quick_runs_are_short(tmp_path: Path) -> None:
    planned = list(trials(Plan(quick=True, seeds=1), tmp_path))
    lengths = [
        int(given[given.index("--trainer.max_epochs") + 1])
        for given in (trial.cell.arguments for trial in planned)
    ]
    assert max(lengths) <= 24


def test_equal_settings_are_run_once(tmp_path: Path) -> None:
    planned = list(trials(Plan(), tmp_path))
    assert len(planned) == 3 * len(ALL)
    cells = {trial.cell for trial in planned}
    assert len({cell.name for cell in cells}) == len(cells) < len(planned)
    vanilla = [t.cell for t in planned if (t.sweep, t.setting, t.seed) == ("kl", "0.001", 0)]
    assert vanilla[0].name == "clip_higher/0.2/seed0"


def test_the_papers_numbers_have_settings() -> None:
    for sweep, numbers in PAPER.items():
        assert set(numbers) <= {setting.name for setting in SWEEPS[sweep]}, sweep


def test_the_table() -> None:
    def results(final: float) -> dict[str, Any]:
        def entry(policy: str, success: float) -> dict[str, Any]:
            low, high = success - 0.1, success + 0.1
            return {"policy": policy, "success": success, "low": low, "high": high}

        evaluations = [entry("untrained", 0.3), entry("final", final), entry("final", 0.0)]
        history = {"rollout/success": [0.3, 0.5, 0.7, 0.7, 0.7]}
        return {"evaluations": evaluations, "history": history, "seconds": 12.0}

    trials_ = [Trial("keep", "0.25", seed, None) for seed in (0, 1)]  # type: ignore[arg-type]
    found = [find(trial, results(s)) for trial, s in zip(trials_, (0.5, 0.7), strict=True)]
    (line,) = [line for line in markdown(found).split("\n") if line.startswith("| 0.25")]
    assert line == ("| 0.25 | 2 | 30 | 60 [50, 70] | 50 to 70 | 58 [58, 58] | 0/2 | 12 | ≈ 21 % |")
