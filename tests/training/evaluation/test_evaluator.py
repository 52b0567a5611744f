"""Evaluations on several ranks."""

from __future__ import annotations

import pytest

from ragen_pl.rollout.baselines import BASELINES
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation import evaluator
from ragen_pl.training.evaluation.sets import EvaluationConfig
from tests.support.toy_env import PROMPTS, NamedLamp


@pytest.mark.parametrize("number", [0, 1])
def test_ranks_share_the_starts_of_a_baseline(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    sets, config = {"default": NamedLamp()}, EvaluationConfig(size=5)
    data = RolloutDataModule(NamedLamp(), sets, prompts=PROMPTS, evaluation=config)
    whole = data.evaluator.evaluate_baseline("default", BASELINES[number])
    monkeypatch.setattr(evaluator, "world_size", lambda: 2)
    shared = []
    for own in (0, 1):
        monkeypatch.setattr(evaluator, "rank", lambda own=own: own)
        shared += data.evaluator.evaluate_baseline("default", BASELINES[number])
    assert len(whole) == 5
    assert sorted(shared, key=lambda group: group.group_id) == whole
