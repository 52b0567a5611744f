"""A script that calls ``Trainer.fit`` is refused what the command refuses, before weights exist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy

from callbacks import VarianceFilter
from ragen_pl.algorithms.config import Algorithm, EnvAlgorithm, ThoughtAdvantage
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.algorithms.policy_losses import GSPO
from ragen_pl.models.endpoint import Endpoint
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.memory import Window
from ragen_pl.runtime import bf16_speed
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO
from tests.support.doubles import make_trainer
from tests.support.toy_env import MODEL, PROMPTS, WORDS, NamedLamp


def fit(
    folder: Path,
    module: Mapping[str, Any],
    rollout: Mapping[str, Any],
    *callbacks: RolloutCallback,
    **trainer: Any,
) -> StarPO:
    """Fit as a script does, without the command."""
    learner = StarPO(**{"policy": MODEL, "vocabulary": WORDS, **module})
    data = RolloutDataModule(
        NamedLamp(),
        {"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=RolloutConfig(num_groups=2, **{"group_size": 2, **rollout}),
    )
    try:
        make_trainer(folder, 1, callbacks, **trainer).fit(learner, datamodule=data)
    except ValueError:
        assert not hasattr(learner, "policy"), "weights were built for a run that is refused"
        raise
    return learner


@pytest.mark.parametrize(
    ("module", "rollout", "message"),
    [
        (
            {"algorithm": Algorithm(advantage=GRPO())},
            {"group_size": 1},
            r"rollout.group_size is 1, but GRPO compares",
        ),
        (
            {"algorithm": Algorithm(policy_loss=GSPO())},
            {"memory": Window(turns=2)},
            r"policy_loss is GSPO, .* cuts trajectories",
        ),
        (
            {"algorithm": Algorithm(thought_advantage=ThoughtAdvantage())},
            {},
            r"thought_advantage is set, but",
        ),
        (
            {"algorithm": Algorithm(per_env={"lamp": EnvAlgorithm()})},
            {},
            r"per_env names 'lamp', but there is no data.envs",
        ),
        (
            {"policy": Endpoint("http://127.0.0.1:9", model="any")},
            {},
            "policy is Endpoint: .* not trained",
        ),
    ],
)
def test_settings_that_contradict_each_other(
    module: dict[str, Any], rollout: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, module, rollout)


def test_a_callback_that_could_do_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_per_group is 4, but groups have 4"):
        fit(tmp_path, {}, {"group_size": 4}, VarianceFilter(keep_per_group=4))


def test_a_callback_of_ones_own_refuses_before_anything_is_sampled(tmp_path: Path) -> None:
    class Picky(RolloutCallback):
        def check_run(self, trainer: Any, rollout: RolloutConfig) -> None:
            raise ValueError(f"groups of {rollout.group_size}")

    with pytest.raises(ValueError, match="groups of 2"):
        fit(tmp_path, {}, {}, Picky())


def test_a_precision_that_trains_nothing_well(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trainer.precision is bf16-true"):
        fit(tmp_path, {}, {}, precision="bf16-true")


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_a_precision_that_makes_the_machine_slower_is_told(
    precision: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bf16_speed, "bf16_slowdown", lambda: 87.0)
    fit(tmp_path, {}, {}, precision=precision)
    is_told = "warning: trainer.precision is bf16-mixed" in capsys.readouterr().out
    assert is_told == (precision == "bf16-mixed")


def test_a_strategy_that_cannot_unshard() -> None:
    module = StarPO(policy=MODEL, optimization=Optimization())
    with pytest.raises(ValueError, match=r"FSDPStrategy, which is FSDP1"):
        module.check_trainer("32-true", FSDPStrategy)


def test_a_run_without_contradictions_learns(tmp_path: Path) -> None:
    module = fit(tmp_path, {}, {})
    assert module.iteration == 1
    assert all(torch.isfinite(weight).all() for weight in module.parameters())
