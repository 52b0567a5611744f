"""Separate advantages for thoughts and answers: what each token gets, alone and over ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ragen_pl.algorithms.estimators.group as group_estimators
import ragen_pl.algorithms.estimators.trajectory as trajectory_estimators
from callbacks import RolloutMetrics
from ragen_pl.algorithms.config import Algorithm, ThoughtAdvantage
from ragen_pl.algorithms.estimators import GAE, GRPO, AdvantageEstimator, ReinforcePlusPlus
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.packing import pack
from ragen_pl.rollout.rewards import Format, Grounding, Truth
from ragen_pl.training import update
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.update import compute_advantages
from ragen_pl.types import RolloutBatch, Trajectory, Turn
from tests.support.config_key_effects import differ
from tests.support.doubles import make_trainer, make_trajectory, make_turn
from tests.support.ranks import on_ranks
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner

ESTIMATORS: tuple[AdvantageEstimator, ...] = (GAE(), GRPO(), ReinforcePlusPlus())
MODULES = (update, trajectory_estimators, group_estimators)


def judged(outcome: float, thought: float | None, length: int = 3) -> Turn:
    """Make a turn of ``length`` tokens, all but the last of them a thought, if there is one."""
    words = "" if thought is None else " ".join(["word"] * (length - 1))
    made = make_turn(outcome, thought=words, entropies=[0.5] * length)
    terms = {**made.rewards, "truth": thought or 0.0}
    return replace(made, rewards=terms, thought_reward=thought or 0.0)


def trajectories() -> list[Trajectory]:
    rows = [
        [judged(-0.1, -0.5, 4), judged(3.0, 0.0)],
        [judged(-0.1, 0.0, 2), judged(-0.1, -0.2, 5), judged(0.0, None)],
        [judged(1.0, -0.5)],
        [judged(-0.3, -0.1, 3), judged(2.0, -0.5, 2)],
    ]
    return [
        make_trajectory(turns, group_id=place // 2, member=place % 2)
        for place, turns in enumerate(rows)
    ]


def packed(rows: list[Trajectory], weights: list[float]) -> RolloutBatch:
    return pack(rows, weights=weights)


def advantages(rollout: RolloutBatch, algorithm: Algorithm) -> Tensor:
    return compute_advantages(rollout, torch.zeros_like(rollout.rewards), algorithm)[0]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("weights", [[1.0] * 4, [1.0, 1.0, 0.0, 0.0]])
def test_answers_owe_nothing_to_thoughts_and_thoughts_get_their_own(
    estimator: AdvantageEstimator, weights: list[float]
) -> None:
    rows = trajectories()
    rollout = packed(rows, weights)
    unjudged = [
        replace(
            row,
            turns=tuple(
                replace(turn, rewards={**turn.rewards, "truth": 0.0}, thought_reward=0.0)
                for turn in row.turns
            ),
        )
        for row in rows
    ]
    outcome = advantages(packed(unjudged, weights), Algorithm(advantage=estimator))
    separate = Algorithm(advantage=estimator, thought_advantage=ThoughtAdvantage(coef=0.7))
    found = advantages(rollout, separate)
    answers = ~rollout.thought_mask
    torch.testing.assert_close(found[answers], outcome[answers], atol=1e-6, rtol=0)
    own = [
        turn.thought_reward
        for row, weight in zip(rows, weights, strict=True)
        for turn in row.turns
        if weight and turn.thought_tokens
    ]
    mean, std = torch.tensor(own).mean(), torch.tensor(own).std()
    extra = found - outcome
    for place, row in enumerate(rows):
        for number, turn in enumerate(row.turns):
            here = rollout.thought_mask[place] & (rollout.turn_index[place] == number)
            expected = 0.7 * (turn.thought_reward - mean) / std * weights[place]
            torch.testing.assert_close(
                extra[place][here],
                expected.expand(int(here.sum())),
                atol=1e-5,
                rtol=0,
            )


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_without_it_every_token_gets_all_rewards(estimator: AdvantageEstimator) -> None:
    rollout = packed(trajectories(), [1.0] * 4)
    ignorant = replace(
        rollout,
        outcome_rewards=torch.full_like(rollout.rewards, torch.nan),
        thought_rewards=torch.full_like(rollout.rewards, torch.nan),
    )
    algorithm = Algorithm(advantage=estimator)
    assert torch.equal(advantages(rollout, algorithm), advantages(ignorant, algorithm))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("cut", [2, 4])
def test_ranks_agree(
    estimator: AdvantageEstimator, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks, also one without rows, give what one rank gives."""
    algorithm = Algorithm(advantage=estimator, thought_advantage=ThoughtAdvantage())
    rows, weights = trajectories(), [1.0, 1.0, 0.0, 1.0]
    whole = advantages(packed(rows, weights), algorithm)
    shares = [(rows[:cut], weights[:cut]), (rows[cut:], weights[cut:])]
    parts = on_ranks(
        2, lambda rank: advantages(packed(*shares[rank]), algorithm), monkeypatch, *MODULES
    )
    found = [row[row.nonzero()] for part in parts for row in part]
    expected = [row[row.nonzero()] for row in whole]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("think", "judged", "why"), [(True, False, "Truth"), (False, True, "think")]
)
def test_an_advantage_of_thoughts_that_could_never_act_is_refused(
    think: bool, judged: bool, why: str
) -> None:
    Algorithm().check_thoughts(think=think, judged=judged)
    with pytest.raises(ValueError, match=rf"thought_advantage is set, but .*{why}"):
        Algorithm(thought_advantage=ThoughtAdvantage()).check_thoughts(think=think, judged=judged)


def trained(thought_advantage: ThoughtAdvantage | None) -> dict[str, Any]:
    """Train a thinking agent in this process; return its weights and last metrics."""
    data = RolloutDataModule(
        env=NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=RolloutConfig(
            num_groups=2,
            group_size=4,
            max_turns=3,
            max_actions_per_turn=1,
            max_response_tokens=10,
            max_context=128,
            rewards={"format": Format(), "thought": Truth(), "grounding": Grounding()},
        ),
        warm_start=WarmStart(
            iterations=1, demonstrations=16, batch_size=8, updates_per_iteration=40
        ),
    )
    module = make_learner()
    module.algorithm = replace(module.algorithm, thought_advantage=thought_advantage)
    trainer = make_trainer(Path(), 2, [RolloutMetrics()], limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    weights = {f"weights/{name}": value for name, value in module.state_dict().items()}
    return {**weights, **trainer.callback_metrics}


def test_its_keys_act_in_a_run() -> None:
    without, one, two = (
        trained(each) for each in (None, ThoughtAdvantage(), ThoughtAdvantage(coef=3.0))
    )
    assert 0.0 < float(one["rollout/grounding"]) < 1.0
    for name in ("thought", "grounding"):
        assert float(one[f"rollout/return/{name}"]) < 0.0
    total = sum(
        float(one[f"rollout/return/{n}"]) for n in ("env", "format", "thought", "grounding")
    )
    assert total == pytest.approx(float(one["rollout/return"]), abs=1e-5)
    assert differ(without, one)
    assert differ(one, two)
