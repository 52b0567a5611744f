"""An environment that needs more turns than a trajectory has is named before the run."""

from __future__ import annotations

import pytest

from ragen_pl.envs import Sokoban
from ragen_pl.rollout.config import RolloutConfig, TrajectoryLimits
from ragen_pl.rollout.mixture import MixtureConfig
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.run_warnings.few_turns import few_turns_warning
from tests.support.toy_env import PROMPTS


@pytest.mark.parametrize(("turns", "each", "told"), [(5, 1, False), (4, 1, True), (2, 3, False)])
def test_less_than_half_of_the_actions_is_told(turns: int, each: int, told: bool) -> None:
    env = Sokoban()
    assert env.max_actions == 10
    warning = few_turns_warning(env, turns, each)
    assert (warning is not None) == told
    if warning is not None:
        assert "at most 4 of the 10 actions" in warning


def test_limits_of_an_environment_in_a_mixture_count(capsys: pytest.CaptureFixture[str]) -> None:
    data = RolloutDataModule(
        envs={"long": Sokoban(), "short": Sokoban()},
        eval_sets={"short": Sokoban(split="eval")},
        prompts=PROMPTS,
        rollout=RolloutConfig(max_turns=10, max_actions_per_turn=3),
        evaluation=EvaluationConfig(size=4),
        mixture=MixtureConfig(limits={"short": TrajectoryLimits(max_turns=1)}),
    )
    data.setup("fit")
    told = [line for line in capsys.readouterr().out.splitlines() if "Raise max_turns" in line]
    assert len(told) == 1
    assert "in 1 turns (max_turns) of 3 actions at most" in told[0]
