"""No key of the data is ignored: each one, changed, changes a tiny run.

A run imitates for one iteration, learns for two and is validated, in this process. What it gives is
its weights and everything it logged. The tokenizer's words are the same in every run: else a prompt
would act through them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from callbacks import EntropyLogger, EvaluationTable, RolloutMetrics, VarianceFilter
from ragen_pl.envs import Bandit
from ragen_pl.rollout.config import RolloutConfig, TrajectoryLimits
from ragen_pl.rollout.curriculum import (
    Curriculum,
    LearningProgress,
    LevelReplay,
    TargetSuccess,
    Uniform,
)
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.memory import State, Window
from ragen_pl.rollout.rewards import Format, Grounding, Overlong, RewardTerm, Truth
from ragen_pl.rollout.self_distillation import SelfDistillation
from ragen_pl.rollout.teachers import Solver, WorldModel
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.evaluation.sets import Budget, EvaluationConfig
from tests.support.config_key_effects import Effect, KeyProof, differ, every_key, spelled
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, Stairs, make_learner
from tests.support.watch import Watch


class PaidLamp(NamedLamp):
    """A lamp with a reward for every press."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, *rest = super().step(action)
        return text, reward + 1.0, *rest  # type: ignore[return-value]


class StingyLamp(NamedLamp):
    """A lamp with rewards so rare that many groups have equal returns."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, _, *rest = super().step(action)
        return text, float(self.rng.random() < 0.1), *rest  # type: ignore[return-value]


ROLLOUT = RolloutConfig(
    num_groups=2,
    group_size=4,
    online_k=2,
    max_turns=3,
    max_actions_per_turn=1,
    max_response_tokens=10,
    max_context=128,
    rewards={"format": Format(), "overlong": Overlong(buffer=4, penalty=-0.5)},
)
WARM_START = WarmStart(iterations=1, demonstrations=16, batch_size=8, updates_per_iteration=60)
THINKING: dict[str, Any] = {
    "env": NamedLamp(),
    "eval_sets": {"default": NamedLamp()},
    "prompts": PROMPTS,
    "rollout": ROLLOUT,
    "warm_start": WARM_START,
    "evaluation": EvaluationConfig(size=6),
    "curriculum": TargetSuccess(pool_factor=2),
}
SILENT: dict[str, Any] = {
    **THINKING,
    "env": StingyLamp(),
    "prompts": replace(PROMPTS, think=False),
    "rollout": RolloutConfig(
        num_groups=4, group_size=4, max_actions_per_turn=1, max_context=128, rewards={}
    ),
    "dynamic_sampling": DynamicSampling(max_collections=2),
    "curriculum": Uniform(),
}
HINDSIGHT = HindsightImitation(
    updates=2, batch_size=6, memory=50, variants=3, opening=1, symmetries=True
)
IN_HINDSIGHT: dict[str, Any] = {
    **THINKING,
    "env": Stairs(),
    "warm_start": replace(WARM_START, random_turns=0.0),
    "rollout": replace(ROLLOUT, num_groups=4),
    "hindsight": HINDSIGHT,
}
PLAIN_HINDSIGHT = HindsightImitation(updates=2, batch_size=6)
WITH_HINTS = {**IN_HINDSIGHT, "hindsight": None, "distillation": SelfDistillation(lessons=8)}
MIXED: dict[str, Any] = {
    **THINKING,
    "env": None,
    "envs": {"named": NamedLamp(), "stairs": Stairs()},
    "curriculum": Uniform(),
}
MIXED_OTHER: Mapping[tuple[str, ...], Any] = {
    ("envs",): {"named": NamedLamp(), "stairs": PaidLamp()},
    ("mixture", "shares"): {"named": 3.0},
    ("mixture", "normalize_rewards"): True,
    ("mixture", "limits"): {"stairs": TrajectoryLimits(max_turns=1)},
    ("mixture", "curricula"): {"named": TargetSuccess(pool_factor=2)},
}
OTHER: Mapping[str, tuple[Any, ...]] = {
    "RolloutDataModule.env": (PaidLamp(),),
    "RolloutDataModule.eval_sets": ({"default": PaidLamp()}, {"another": NamedLamp()}),
    "RolloutDataModule.run_seed": (1,),
    "Prompts.system": ("{instruction}",),
    "Prompts.turn": ("{observation} {actions_left}",),
    "Prompts.response_format_think": ("think, then answer",),
    "Prompts.response_format_answer": ("answer",),
    "RolloutConfig.num_groups": (3,),
    "RolloutConfig.group_size": (3,),
    "RolloutConfig.online_k": (3,),
    "RolloutConfig.ppo_epochs": (2,),
    "RolloutConfig.max_turns": (2,),
    "RolloutConfig.max_actions_per_turn": (2,),
    "RolloutConfig.max_response_tokens": (12,),
    "RolloutConfig.max_context": (60,),
    "RolloutConfig.memory": (State(), Window(2)),
    "RolloutConfig.temperature": (0.5,),
    "RolloutConfig.rewards": (
        {"format": Format(), "overlong": Overlong(buffer=8, penalty=-0.5)},
        {"format": Format(-1.0), "overlong": None},
    ),
    "WarmStart.iterations": (0, 2),
    "WarmStart.updates_per_iteration": (20,),
    "WarmStart.batch_size": (4,),
    "WarmStart.demonstrations": (12,),
    "WarmStart.random_turns": (0.9,),
    "WarmStart.imitate_random": (True,),
    "WarmStart.teacher": (Solver(0.9), WorldModel()),
    "Solver.random_turns": (0.9,),
    "WarmStart.difficulties": (("lit",),),
    "RolloutDataModule.distillation": (SelfDistillation(),),
    "SelfDistillation.coef": (0.5,),
    "SelfDistillation.limit": (1e-2,),
    "SelfDistillation.lessons": (5,),
    "RolloutDataModule.hindsight": (PLAIN_HINDSIGHT,),
    "HindsightImitation.lr": (1e-3,),
    "HindsightImitation.updates": (1,),
    "HindsightImitation.batch_size": (3,),
    "HindsightImitation.memory": (1,),
    "HindsightImitation.fresh": (1.0,),
    "HindsightImitation.rewrite": (False,),
    "HindsightImitation.variants": (1, 2),
    "HindsightImitation.opening": (0, 1),
    "HindsightImitation.first_turn_only": (1.0,),
    "HindsightImitation.symmetries": (False, True),
    "HindsightImitation.alone": (True,),
    "EvaluationConfig.size": (9,),
    "EvaluationConfig.temperature": (0.0,),
    "EvaluationConfig.samples": (2,),
    "EvaluationConfig.at_least": ({"default": Budget(max_turns=5)},),
    "DynamicSampling.max_collections": (3,),
    "TargetSuccess.pool_factor": (3,),
    "TargetSuccess.decay": (0.1,),
    "TargetSuccess.target": (0.9,),
    "TargetSuccess.floor": (1.0,),
}


def trained(arguments: dict[str, Any]) -> dict[str, Any]:
    """Train, validate within the run and after it; return the weights and the last metrics, by
    name."""
    hindsight = arguments.get("hindsight")
    module = make_learner(hindsight_lr=None if hindsight is None else hindsight.lr)
    callbacks = [RolloutMetrics(), EntropyLogger(), VarianceFilter(keep_fraction=0.5)]
    trainer = make_trainer(Path(), 3, callbacks, check_val_every_n_epoch=3)
    trainer.fit(module, datamodule=RolloutDataModule(**arguments))
    weights = {f"weights/{name}": value for name, value in module.state_dict().items()}
    found = {**weights, **trainer.callback_metrics}
    with TemporaryDirectory() as folder:
        alone = make_trainer(Path(folder), 3, [EvaluationTable()])
        alone.validate(module, datamodule=RolloutDataModule(**arguments), verbose=False)
    return found | {f"alone/{name}": value for name, value in alone.callback_metrics.items()}


SPEED_ONLY = ("env_threads", "env_workers")
"""Must not change a result."""
BASES = (
    *(THINKING, SILENT, IN_HINDSIGHT, {**IN_HINDSIGHT, "hindsight": PLAIN_HINDSIGHT}),
    *(MIXED, WITH_HINTS),
)
PROOFS = {"data": KeyProof(RolloutDataModule, trained, BASES, OTHER)}


def test_the_base_run_trains_and_validates() -> None:
    for number in (0, 1, 2):
        found = PROOFS["data"].before(number)
        assert found["rollout/in_group_std"] > 0.1
        assert found["rollout/valid_format"] > 0.1
        assert all(bool(value.isfinite().all()) for value in found.values())
    assert 0.0 < PROOFS["data"].before(0)["rollout/thought_accuracy"] < 1.0
    assert PROOFS["data"].before(2)["train/hindsight_memory"] >= 4


def test_the_same_run_twice_is_the_same() -> None:
    PROOFS["data"].check_reproducible()


PROVEN_ELSEWHERE = (("data", ("prompts", "tools")),)
"""It needs a model whose chat template has tools: tests/rollout/test_tool_dialogues.py."""
KEYS = [key for key in every_key(PROOFS) if key not in PROVEN_ELSEWHERE]


@pytest.mark.parametrize(("subject", "path"), KEYS, ids=spelled)
def test_a_key_of_the_data_acts(subject: str, path: tuple[str, ...]) -> None:
    if path == ("rollout", "step_timeout_s"):  # a limit that only workers can keep
        assert PROOFS[subject].effect(0, path, 4.0) is Effect.REFUSED
        limited = replace(ROLLOUT, env_workers=1, step_timeout_s=60.0)
        assert not differ(trained(THINKING), trained({**THINKING, "rollout": limited}))
    elif path[-1] in SPEED_ONLY:
        assert PROOFS[subject].effect(0, path, 4) is Effect.IGNORED
    elif path == ("mixture", "shares_of"):  # test_mixture counts the groups
        assert PROOFS[subject].effect(4, path, "tokens") is not Effect.REFUSED
    elif path in MIXED_OTHER:
        assert PROOFS[subject].effect(4, path, MIXED_OTHER[path]) is Effect.CHANGED
    elif path == ("dynamic_sampling",):  # where it acts some groups must lack a spread
        assert PROOFS[subject].effect(1, path, None) is Effect.CHANGED
    elif path == ("evaluation", "pins"):  # which must change nothing
        assert PROOFS[subject].effect(0, path, {"default": "6:00000000"}) is Effect.REFUSED
        assert PROOFS[subject].effect(0, path, {"other": None}) is Effect.REFUSED
        assert PROOFS[subject].effect(0, path, {"default": "7:00000000"}) is Effect.IGNORED
    else:
        PROOFS[subject].check(path)


@pytest.mark.parametrize("room", [Budget(max_context=128), Budget(max_response_tokens=14)])
def test_room_on_an_evaluation_set_acts_where_the_rollout_is_short(room: Budget) -> None:
    short = {**THINKING, "rollout": replace(ROLLOUT, max_context=30)}
    if room.max_context is None:
        short = THINKING
    wide = EvaluationConfig(size=6, at_least={"default": room})
    assert differ(trained(short), trained({**short, "evaluation": wide}))


def test_a_response_of_free_text_is_one_action_in_training_and_on_evaluation_sets() -> None:
    class Spoken(Stairs):
        actions = None  # type: ignore[assignment]

    wide = replace(ROLLOUT, max_actions_per_turn=2)
    sets = {"default": Spoken(), "named": Stairs()}
    data = RolloutDataModule(**THINKING | {"env": Spoken(), "rollout": wide, "eval_sets": sets})
    assert data.dialogues.max_actions_per_turn == 1
    assert data.dialogues.actions_per_turn_on("default") == 1
    assert data.dialogues.actions_per_turn_on("named") == 2


def test_room_is_a_sets_own() -> None:
    wide = EvaluationConfig(at_least={"wide": Budget(max_actions_per_turn=2)})
    sets = {"default": NamedLamp(), "wide": Stairs()}
    data = RolloutDataModule(**THINKING | {"evaluation": wide, "eval_sets": sets})
    assert data.dialogues.max_actions_per_turn == 1
    assert data.dialogues.actions_per_turn_on("default") == 1
    assert data.dialogues.actions_per_turn_on("wide") == 2
    with pytest.raises(ValueError, match=r"at_least\.wide is for no evaluation set; .* default"):
        RolloutDataModule(**THINKING | {"evaluation": wide, "eval_sets": {"default": NamedLamp()}})


def test_the_curriculum_acts() -> None:
    assert PROOFS["data"].effect(0, ("curriculum",), Uniform()) is Effect.CHANGED


CURRICULA: Mapping[Curriculum, Mapping[str, Any]] = {
    LearningProgress(pool_factor=2): {"pool_factor": 3, "decay": 0.1, "temperature": 5.0},
    LevelReplay(replay=0.9, score_temperature=0.02): {
        "replay": 0.1,
        "memory": 2,
        "score_temperature": 20.0,
        "staleness": 1.0,
    },
}
"""Curricula beside those above, with other values of their keys."""


@lru_cache
def chosen_by(curriculum: Curriculum) -> list[int]:
    """Train with a curriculum for long enough that it has something to go by; return the seeds that
    were played."""
    wide = replace(ROLLOUT, num_groups=4)
    data = RolloutDataModule(**THINKING | {"curriculum": curriculum, "rollout": wide})
    watch = Watch(dies_at=None)
    trainer = make_trainer(Path(), 6, [watch], limit_val_batches=0)
    trainer.fit(make_learner(), datamodule=data)
    return [group.seed for groups in watch.played.values() for group in groups]


@pytest.mark.parametrize(
    ("curriculum", "key"), [(each, key) for each, keys in CURRICULA.items() for key in keys]
)
def test_a_key_of_every_curriculum_acts(curriculum: Curriculum, key: str) -> None:
    other = replace(curriculum, **{key: CURRICULA[curriculum][key]})  # type: ignore[type-var]
    assert chosen_by(curriculum) != chosen_by(other)
    assert {field.name for field in fields(curriculum)} == {*CURRICULA[curriculum]}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("term", "changes", "message"),
    [
        (Truth(), {"prompts": replace(PROMPTS, think=False)}, "Truth, but prompts.think is false"),
        (
            Grounding(),
            {"prompts": replace(PROMPTS, think=False)},
            "Grounding, but prompts.think is false",
        ),
        (
            Grounding(),
            {"env": Bandit()},
            "Grounding, but Bandit cannot judge how much of a thought holds",
        ),
        (Truth(), {"env": Bandit()}, "Truth, but Bandit cannot judge whether a thought is true"),
    ],
)
def test_a_reward_that_could_never_act_is_refused(
    term: RewardTerm, changes: dict[str, Any], message: str
) -> None:
    paid = {**THINKING, "rollout": replace(ROLLOUT, rewards={"mine": term})}
    RolloutDataModule(**paid)
    with pytest.raises(ValueError, match=rf"rewards\.mine is {message}: set .*mine to null"):
        RolloutDataModule(**paid | changes)
