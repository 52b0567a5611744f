"""A ``class_path`` of one's own that cannot be built is told with what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ragen_pl.cli.entry_point import main
from tests.support.tiny_run import write_config

CLASSES = """
from dataclasses import dataclass
from ragen_pl.algorithms.estimators.base import WithoutCritic
from ragen_pl.algorithms.filters import FilterRule
from ragen_pl.rollout.rewards import RewardTerm

class NoCall(RewardTerm):
    pass

class NoRule(FilterRule):
    pass

class NoCompare(WithoutCritic):
    pass

class Alone:
    def compare(self, rollout, rewards):
        return rewards

def reward(turn):
    return 0.0

@dataclass(frozen=True)
class TwoScores(FilterRule):
    def __call__(self, scores, returns):
        return scores > 0
"""
REWARD = "ragen_pl.rollout.rewards.RewardTerm"
RULE = ("--filter.keep_fraction", "null", "--filter.rule")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--data.rollout.rewards.mine", "my_parts.NoCall"),
            "data.rollout.rewards.mine is my_parts.NoCall, which lacks __call__\n"
            f"  define what {REWARD}",
        ),
        (
            ("--data.rollout.rewards.mine", "my_parts.reward"),
            f"my_parts.reward, which is a function\n  it must be a class derived from {REWARD}",
        ),
        ((*RULE, "my_parts.NoRule"), "filter.rule is my_parts.NoRule, which lacks __call__\n"),
        (
            (*RULE, "my_parts.TwoScores"),
            "error: my_parts.TwoScores.__call__ raised TypeError: TwoScores.__call__() missing 1 "
            "required positional argument: 'returns'\n  it is called as __call__(scores)\n",
        ),
        (
            ("--model.algorithm.advantage", "my_parts.NoCompare"),
            "model.algorithm.advantage is my_parts.NoCompare, which lacks compare\n",
        ),
        (
            ("--model.algorithm.advantage", "my_parts.Alone"),
            "which is not derived from ragen_pl.algorithms.estimators.base.AdvantageEstimator",
        ),
    ],
)
def test_an_unfit_class_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    told: str,
) -> None:
    (tmp_path / "my_parts.py").write_text(CLASSES)
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", "tiny.yaml", "--run_dir", "run", *options]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) <= 3


@pytest.mark.parametrize(
    "options",
    [
        ("check-env", "--env", "leaves.Mine"),
        ("fit", "--config", "tiny.yaml", "--data.env", "leaves.Mine"),
        ("fit", "--config", "tiny.yaml", "--data.rollout.rewards.mine", "leaves.Mine"),
        ("doctor", "--config", "tiny.yaml", "--model.algorithm.advantage", "leaves.Mine"),
        ("plan", "--config", "tiny.yaml", "--trainer.callbacks+", "leaves.Mine"),
    ],
)
@pytest.mark.parametrize(
    ("code", "told"), [("3", "3"), ("", "0"), ("'no licence'", "'no licence'")]
)
def test_a_module_that_ends_the_program_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: str,
    told: str,
) -> None:
    (tmp_path / "leaves.py").write_text("import inner\n")
    (tmp_path / "inner.py").write_text(f"import sys\n\nsys.exit({code})\n")
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(options) == 2
    assert capsys.readouterr().err == (
        f"error: inner cannot be imported: it ends the program, sys.exit({told}) (inner.py:3)\n"
        '  what only a script is to do belongs below if __name__ == "__main__":\n'
    )


LEAVING = """
import sys

from lightning.pytorch import Callback
from ragen_pl.envs import Bandit


class Door(Bandit):
    def step(self, action):
        sys.exit(3)


class Leaver(Callback):
    def setup(self, trainer, pl_module, stage):
        sys.exit()
"""


@pytest.mark.parametrize(
    ("options", "told", "status"),
    [
        (("check-env", "--env", "leaving.Door"), "sys.exit(3) (leaving.py:10)", 3),
        (
            ("fit", "--config", "tiny.yaml", "--data.env", "leaving.Door", "--run_dir", "run"),
            "sys.exit(3) (leaving.py:10)",
            3,
        ),
        (
            ("fit", "--config", "tiny.yaml", "--trainer.callbacks+", "leaving.Leaver"),
            "sys.exit(0) (leaving.py:15)",
            2,  # a run that did not finish is no success
        ),
    ],
)
def test_code_that_ends_a_run_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    told: str,
    status: int,
) -> None:
    monkeypatch.delitem(sys.modules, "leaving", raising=False)  # of the case before
    (tmp_path / "leaving.py").write_text(LEAVING)
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(options))
    assert ended.value.code == status
    assert capsys.readouterr().err.endswith(
        f"error: code of yours ended the run: it ends the program, {told}; raise an exception "
        "instead\n"
    )
