"""The classes that docs/extending.md writes do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gymnasium.utils.env_checker import check_env

from ragen_pl.training.datamodule import RolloutDataModule

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def example(file: str) -> dict[str, Any]:
    """Run the page's example of that file; return its names."""
    pattern = rf"```python\n(# {re.escape(file)}.*?)```"
    found = re.search(pattern, PAGE.read_text("utf-8"), re.DOTALL)
    assert found, file
    names: dict[str, Any] = {}
    exec(compile(found[1], file, "exec", dont_inherit=True), names)
    return names


def test_guess_number(capsys: pytest.CaptureFixture[str]) -> None:
    kind = example("my_envs.py")["GuessNumber"]
    check_env(kind(), skip_render_check=True)
    RolloutDataModule(kind(), {"default": kind()}).setup("fit")
    assert "data.eval_sets.default: 10 of its 10 starts are among" in capsys.readouterr().out


def test_reward_to_go() -> None:
    rollout = SimpleNamespace(loss_mask=torch.tensor([[False, True, True]]))
    rewards = torch.tensor([[0.0, 1.0, 2.0]])
    estimate = example("my_algorithms.py")["RewardToGo"](gamma=0.5).compare(rollout, rewards)
    assert estimate.tolist() == [[0.0, 2.0, 2.0]]


def test_above_mean() -> None:
    rule = example("my_filters.py")["AboveMean"]()
    assert rule(torch.tensor([1.0, torch.nan, 3.0])).tolist() == [False, False, True]


def test_short_thoughts() -> None:
    callback = example("my_callbacks.py")["ShortThoughts"]()
    turns = [SimpleNamespace(thought=thought) for thought in ("", "Up")]
    group = SimpleNamespace(trajectories=[SimpleNamespace(turns=turns)])
    callback.on_rollout_end(None, None, [group])
    assert callback.recorded == {"rollout/empty_thoughts": 0.5}


def test_a_script_learns_without_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = example("train.py")["train"](iterations=1, warm_start=1)
    assert (module.iteration, module.rl_start) == (2, 1)
    assert module.global_step > 1
    assert list(tmp_path.glob("runs/train/**/events.out.tfevents.*"))
