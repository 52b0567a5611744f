"""No key of the algorithm or the optimization is ignored: each one, changed, changes a tiny run.

A run imitates for one iteration and learns for two, in this process. What it gives is its weights
and everything it logged. Keys are found by walking the configuration, so that a new one without a
changed value here fails.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from callbacks import VarianceFilter
from ragen_pl.algorithms.config import Algorithm, Control, EntropyBonus, EntropySmoothing, KLPenalty
from ragen_pl.algorithms.estimators import (
    GAE,
    GRPO,
    RLOO,
    BiLevelGAE,
    CriticConfig,
    DrGRPO,
    GiGPO,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Success,
)
from ragen_pl.algorithms.optimization import Muon, Optimization
from ragen_pl.algorithms.policy_losses import CISPO, GSPO, SAPO, ClipCov, KLCov, LogLikelihood
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.engines import Engine, InProcess
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO
from tests.support.config_key_effects import differ, replaced, walk
from tests.support.doubles import make_trainer
from tests.support.toy_env import Lamp


@cache
def outcome(
    algorithm: Algorithm,
    optimization: Optimization,
    engine: Engine = InProcess(),  # noqa: B008  frozen, so sharing it is safe
) -> dict[str, Any]:
    """Train; return the weights and the last metrics, by name."""
    data = RolloutDataModule(
        env=Lamp(),
        eval_sets={"default": Lamp()},
        prompts=Prompts(think=False, system="{instruction}", turn="{observation}"),
        rollout=RolloutConfig(
            num_groups=2,
            group_size=4,
            ppo_epochs=2,
            max_turns=3,
            max_actions_per_turn=1,
            max_response_tokens=6,
            max_context=96,
        ),
        warm_start=WarmStart(
            iterations=1,
            demonstrations=16,
            batch_size=8,
            updates_per_iteration=60,
            random_turns=0.0,
        ),
    )
    module = StarPO(
        policy=EmbeddedModel(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2),
        algorithm=algorithm,
        optimization=optimization,
        engine=engine,
        vocabulary=list(data.vocabulary()),
    )
    # RL's first collection has no KL, the second steers its coefficient, the third one bears that.
    epochs = 4 if algorithm.kl_in_reward else 3
    trainer = make_trainer(Path(), epochs, [VarianceFilter(keep_fraction=0.5)], limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    assert trainer.callback_metrics["rollout/in_group_std"] > 0.1, "there is something to learn"
    weights = {f"weights/{name}": value for name, value in module.state_dict().items()}
    return {**weights, **trainer.callback_metrics}


OPTIMIZATION = Optimization(lr=5e-3, imitation_lr=1e-2, warmup_iterations=0)
CRITIC = CriticConfig(lr=5e-3, warmup_iterations=0)
PPO = Algorithm(advantage=GAE(gamma=0.9, gae_lambda=0.9, critic=CRITIC))


def but(algorithm: Algorithm = PPO, **changes: Any) -> Algorithm:
    return dataclasses.replace(algorithm, **changes)


CONTROL = Control(target=0.01, horizon=2.0)
ALGORITHMS = {
    "GAE": PPO,
    "BiLevelGAE": but(advantage=BiLevelGAE(gamma=0.9, gae_lambda=0.9, critic=CRITIC)),
    "ReinforcePlusPlus": but(advantage=ReinforcePlusPlus()),
    "ReinforcePlusPlusBaseline": but(advantage=ReinforcePlusPlusBaseline()),
    "GRPO": but(advantage=GRPO()),
    "DrGRPO": but(advantage=DrGRPO()),
    "RLOO": but(advantage=RLOO()),
    "GiGPO": but(advantage=GiGPO()),
    "Success": but(advantage=Success()),
    "GSPO": but(advantage=GRPO(), policy_loss=GSPO()),
    "CISPO": but(advantage=GRPO(), policy_loss=CISPO()),
    "SAPO": but(advantage=GRPO(), policy_loss=SAPO()),
    "ClipCov": but(advantage=GRPO(), policy_loss=ClipCov(share=0.3, cov_low=0.0)),
    "KLCov": but(advantage=GRPO(), policy_loss=KLCov(share=0.3)),
    "LogLikelihood": but(advantage=Success(), policy_loss=LogLikelihood()),  # two updates
    "KL in the loss": but(kl=KLPenalty(coef=0.1, control=CONTROL)),
    "KL in rewards": but(advantage=GRPO(), kl=KLPenalty(coef=0.1, place="reward", control=CONTROL)),
    "entropy control": but(advantage=GRPO(), entropy=EntropyBonus(control=CONTROL)),
    "entropy smoothing": but(
        advantage=GRPO(), entropy=EntropyBonus(0.1, smoothing=EntropySmoothing())
    ),
}
OTHER: dict[str, tuple[Any, ...]] = {
    "advantage.gamma": (0.5,),
    "advantage.gae_lambda": (0.3,),
    "advantage.turn_gamma": (0.3,),
    "advantage.reward_at": ("turn", "trajectory"),
    "advantage.reward_scale": (1.0,),
    "advantage.step_weight": (0.0,),
    "advantage.divide_by_std": (False,),
    "critic.lr": (1e-3,),
    "critic.value_coef": (0.0,),
    "critic.value_clip": (1e-3,),
    "critic.warmup_iterations": (1,),
    "critic.train_on": ("kept",),
    "critic.backbone": ("shared",),
    "policy_loss.clip_low": (1e-5, 0.999),
    "policy_loss.clip_high": (1e-5, 9.0),
    "policy_loss.dual_clip": (1.001,),
    "policy_loss.temperature_pos": (9.0,),
    "policy_loss.temperature_neg": (9.0,),
    "policy_loss.share": (0.9,),
    "policy_loss.cov_low": (-9.0,),
    "policy_loss.cov_high": (0.05,),
    "policy_loss.coef": (0.0,),
    "algorithm.aggregation": ("sequence_mean_token_mean", "sequence_mean_token_sum"),
    "algorithm.kl": (KLPenalty(coef=0.1),),
    "kl.coef": (0.9,),
    "kl.estimator": ("k1", "k2"),
    "kl.place": ("loss", "reward"),
    "kl.control": (None,),
    "entropy.coef": (0.5,),
    "entropy.control": (CONTROL,),
    "entropy.smoothing": (EntropySmoothing(),),
    "smoothing.low": (0.1,),
    "smoothing.high": (9.0,),
    "smoothing.weight": (9.0,),
    "smoothing.window": (1,),
    "smoothing.ramp": (1.0,),
    "control.target": (90.0,),
    "control.horizon": (9.0,),
    "optimization.lr": (1e-3,),
    "optimization.imitation_lr": (5e-3,),
    "optimization.warmup_iterations": (3,),
    "optimization.final_lr_fraction": (0.9,),
    "optimization.betas": ((0.5, 0.9),),
    "optimization.weight_decay": (0.5,),
    "optimization.muon": (Muon(),),
    "muon.lr_factor": (1.0,),
    "muon.momentum": (0.5,),
    "muon.nesterov": (False,),
    "optimization.max_grad_norm": (1e-3,),
    "optimization.train_embeddings": (False,),
    "optimization.old_log_probs": ("sampled",),
}
"""Values of which at least one is not the base's, and must change the run."""
SPEED_ONLY = (
    "optimization.tokens_per_micro_batch",
    "optimization.gradient_checkpointing",
    "optimization.compile",
)
"""Keys that must not change a result; ``tests/training/test_objective.py``,
``tests/models/test_trainable_keys_act.py`` and ``tests/models/test_compile.py`` check that."""


ELSEWHERE = ("tis_cap", "thought_advantage", "per_env")
"""Act where the sampler is not the policy (``tests/training/test_sampler_correction.py``), where
the agent thinks (``tests/training/test_thought_streams.py``), and in mixtures
(``tests/training/test_mixture_update.py``)."""


def owner(base: str, path: tuple[str, ...]) -> type:
    config: Any = ALGORITHMS[base]
    for key in path[:-1]:
        config = getattr(config, key)
    return type(config)


def once_per_class() -> list[tuple[str, tuple[str, ...]]]:
    """List (base, path): every key of every class once, those of KL and control in each base."""
    found: dict[tuple[Any, ...], tuple[str, tuple[str, ...]]] = {}
    for base, algorithm in ALGORITHMS.items():
        for path in walk(algorithm):
            if path[-1] in ELSEWHERE:
                continue
            own = base if path[0] in ("kl", "entropy") and len(path) > 1 else ""
            found.setdefault((owner(base, path), path[-1], own * ("control" in path)), (base, path))
    return list(found.values())


@pytest.mark.parametrize(
    ("base", "path"), once_per_class(), ids=lambda v: v if isinstance(v, str) else ".".join(v)
)
def test_a_key_of_the_algorithm_acts(base: str, path: tuple[str, ...]) -> None:
    before = outcome(ALGORITHMS[base], OPTIMIZATION)
    name = ".".join(("algorithm", *path)[-2:])
    changed = [replaced(ALGORITHMS[base], path, value) for value in OTHER[name]]
    others = [algorithm for algorithm in changed if algorithm != ALGORITHMS[base]]
    assert others, f"{name} needs a value in OTHER that is not the base's"
    acts = any(differ(before, outcome(algorithm, OPTIMIZATION)) for algorithm in others)
    assert acts, f"{name} is ignored by {base}"


@pytest.mark.parametrize("base", [name for name in ALGORITHMS if name != "GAE"])
def test_every_algorithm_gives_different_weights(base: str) -> None:
    found = outcome(ALGORITHMS[base], OPTIMIZATION)
    assert all(bool(value.isfinite().all()) for value in found.values())
    for other in ALGORITHMS:
        if other != base:
            assert differ(found, outcome(ALGORITHMS[other], OPTIMIZATION)), f"{base} is {other}"


@pytest.mark.parametrize(
    "key", [f.name for f in dataclasses.fields(Optimization)], ids=lambda key: str(key)
)
def test_a_key_of_the_optimization_acts(key: str) -> None:
    name = f"optimization.{key}"
    if name in SPEED_ONLY:
        return
    for value in OTHER[name]:
        changed = dataclasses.replace(OPTIMIZATION, **{key: value})
        assert differ(outcome(PPO, OPTIMIZATION), outcome(PPO, changed)), f"{name} is ignored"


@pytest.mark.parametrize("key", ["weight_decay", *(f.name for f in dataclasses.fields(Muon))])
def test_a_key_of_muon_acts(key: str) -> None:
    before = dataclasses.replace(OPTIMIZATION, muon=Muon())
    path = (key,) if key == "weight_decay" else ("muon", key)
    (value,) = OTHER[".".join(("optimization", *path)[-2:])]
    changed = replaced(before, path, value)
    assert differ(outcome(PPO, before), outcome(PPO, changed)), f"{key} is ignored"
