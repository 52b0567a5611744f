"""Rollouts that the context ends are told once, with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callbacks import RolloutMetrics
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation, Solutions
from ragen_pl.rollout.memory import Compact, Memory, Window
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.run_warnings.full_contexts import full_context_warning
from tests.support.doubles import make_trainer
from tests.support.recorded_play import embedded_chat
from tests.support.toy_env import PROMPTS, Stairs, make_learner

CONFIG = RolloutConfig(max_context=300)


def test_more_than_half_are_told() -> None:
    assert full_context_warning(0.5, CONFIG, 3) is None
    told = full_context_warning(0.6, CONFIG, 4)
    assert told is not None
    assert told.startswith(
        "warning: 60% of the trajectories of iteration 5 ended as context_full: their next turn "
        "had no room in data.rollout.max_context, 300 tokens."
    )
    assert "data.rollout.memory: Window" in told


@pytest.mark.parametrize(
    ("memory", "key"),
    [(Compact(budget=200), "memory.budget, 200 tokens"), (Window(2), "max_context, 300 tokens")],
)
def test_the_limit_is_named_where_it_is_set(memory: Memory, key: str) -> None:
    told = full_context_warning(1.0, replace(CONFIG, memory=memory), 0)
    assert told is not None
    assert f"data.rollout.{key}" in told
    assert "let a memory cut" not in told


def test_a_run_tells_of_full_contexts_and_of_unwritten_solutions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context has room for one turn of three."""
    monkeypatch.setattr(Solutions, "warning", lambda self: "nothing was written")
    size: Any = {"num_groups": 2, "group_size": 2, "max_turns": 3, "max_actions_per_turn": 1}
    (room,) = first_prompts(Stairs(), PROMPTS)
    config = RolloutConfig(**size, max_response_tokens=4, max_context=room + 4)
    data = RolloutDataModule(
        env=Stairs(),
        eval_sets={"default": Stairs()},
        prompts=PROMPTS,
        rollout=config,
        warm_start=WarmStart(iterations=0),
        hindsight=HindsightImitation(alone=True),
        evaluation=EvaluationConfig(size=2),
    )
    module = make_learner(hindsight_lr=1e-3)
    make_trainer(tmp_path, 2, [RolloutMetrics()], limit_val_batches=0).fit(module, datamodule=data)
    shown = capsys.readouterr().out
    assert (
        shown.count("warning: 100% of the trajectories of iteration 1 ended as context_full") == 1
    )
    assert f"data.rollout.max_context, {room + 4} tokens" in shown
    assert "warning: nothing was written" in shown


def first_prompts(env: TextEnv, prompts: Prompts) -> set[int]:
    """Return the lengths of the first prompts of a few starts."""
    chat, lengths = embedded_chat(env, prompts, 1), set()
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        text = chat.turn_text(0, observation, 0.0, env.max_actions)
        (prompt,) = chat.encode_parts([chat.first_context(env, text)])
        lengths.add(len(prompt))
    return lengths
