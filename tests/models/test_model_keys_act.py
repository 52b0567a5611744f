"""No key of the model is ignored: each one, changed, changes its weights or its output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from callbacks import EntropyLogger
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.export import export_policy
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO
from tests.support.config_key_effects import KeyProof, differ, spelled
from tests.support.doubles import make_trainer
from tests.support.toy_env import MODEL, NamedLamp, make_learner
from tests.support.toy_env import WORDS as LAMP_WORDS

SMALL = EmbeddedModel(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=4)
WORDS = ("Up", "Down", "#__#\n")
OTHER: dict[str, tuple[Any, ...]] = {
    "EmbeddedModel.hidden_size": (24, 20),
    "EmbeddedModel.intermediate_size": (48,),
    "EmbeddedModel.num_layers": (2,),
    "EmbeddedModel.num_heads": (2, 3),
    "EmbeddedModel.num_key_value_heads": (1, 3),
    "EmbeddedModel.init_std": (0.02,),
    "StarPO.lora": (LoRA(rank=2),),
    "StarPO.seed": (1,),
    "StarPO.vocabulary": ((*WORDS, "Left"),),
}


def built(arguments: dict[str, Any]) -> dict[str, Any]:
    """Build; return the weights by name, and the policy's output."""
    module = StarPO(**arguments)
    module.configure_model()
    tokens = torch.arange(8)[None]
    sampled, there = tokens > 3, tokens >= 0
    with torch.no_grad():
        log_probs = module.policy(tokens, sampled, there).log_probs
    return {**module.state_dict(), "log-probs": log_probs}


PROOF = KeyProof(StarPO, built, ({"policy": SMALL, "vocabulary": WORDS},), OTHER)
ELSEWHERE = ("algorithm", "optimization", "engine", "hindsight_lr")
"""``tests/training/test_keys_act.py`` has the first two, ``tests/engines`` the engine's, and
``tests/training/test_data_keys_act.py`` the last, which comes from ``data.hindsight``."""
KEYS = [path for path in PROOF.paths() if path[0] not in ELSEWHERE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy with other weights."""
    path = tmp_path_factory.mktemp("policy")
    export_policy(SMALL.build(WORDS, seed=5), path)
    return str(path)


def test_the_same_model_twice_is_the_same() -> None:
    PROOF.check_reproducible()


@pytest.mark.parametrize("path", KEYS, ids=spelled)
def test_a_key_of_the_model_acts(path: tuple[str, ...], folder: str) -> None:
    weights = {"EmbeddedModel.weights": (folder, "no such folder")}
    replace(PROOF, others={**OTHER, **weights}).check(path)


def test_the_seed_decides_what_is_sampled_too(tmp_path: Path) -> None:
    export_policy(MODEL.build(LAMP_WORDS, seed=5), tmp_path)

    def played(seed: int) -> dict[str, Any]:
        module = make_learner(replace(MODEL, weights=str(tmp_path)), seed)
        rollout = RolloutConfig(num_groups=1, group_size=2, max_response_tokens=6)
        data = RolloutDataModule(NamedLamp(), {"default": NamedLamp()}, rollout=rollout)
        make_trainer(tmp_path, 1, [EntropyLogger()], limit_val_batches=0).fit(
            module, datamodule=data
        )
        return dict(module.trainer.callback_metrics)

    assert not differ(played(0), played(0))
    assert differ(played(0), played(1))
