"""A mixture in a run: what is played, learned, saved, logged and refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from callbacks.echo_trap_detector import EchoTrapDetector
from callbacks.rollout_metrics import RolloutMetrics
from callbacks.variance_filter import VarianceFilter
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.config import RolloutConfig, TrajectoryLimits
from ragen_pl.rollout.curriculum import LevelReplay, TargetSuccess
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.mixture import MixtureConfig, groups_by_env
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, Lamp, NamedLamp, Stairs, make_learner
from tests.support.watch import Watch

ROLLOUT = RolloutConfig(
    num_groups=6,
    group_size=3,
    max_turns=2,
    max_actions_per_turn=2,
    max_response_tokens=10,
    max_context=128,
)


class Mute(Lamp):
    """A lamp without an expert, of one action."""

    max_actions = 1
    expert_turn = TextEnv.expert_turn


def make_data(**changes: Any) -> RolloutDataModule:
    given: dict[str, Any] = {
        "envs": {"named": NamedLamp(), "stairs": Stairs(), "mute": Mute(), "gone": None},
        "eval_sets": {"named": NamedLamp(), "stairs_eval": Stairs()},
        "prompts": PROMPTS,
        "evaluation": EvaluationConfig(size=4),
        "rollout": ROLLOUT,
        "warm_start": WarmStart(
            iterations=1, demonstrations=12, batch_size=8, updates_per_iteration=20
        ),
        "mixture": MixtureConfig(
            shares={"named": 3.0, "stairs": 2.0},
            normalize_rewards=True,
            shares_of="tokens",
            curricula={"named": TargetSuccess(pool_factor=2), "stairs": LevelReplay(memory=20)},
        ),
        "run_seed": 3,
    }
    return RolloutDataModule(**(given | changes))


def facts(groups: list[TrajectoryGroup]) -> list[tuple[int, int, str, float]]:
    return [(group.group_id, group.seed, group.env, group.weight) for group in groups]


def fit(folder: Path, *, dies_at: int | None = None, resume: bool = False) -> tuple[Any, Watch]:
    hindsight = HindsightImitation(updates=1, batch_size=4, variants=2, symmetries=True)
    module, watch = make_learner(hindsight_lr=hindsight.lr), Watch(dies_at)
    saver = ModelCheckpoint(folder, save_last=True)
    data = make_data(hindsight=hindsight, dynamic_sampling=DynamicSampling(max_collections=2))
    callbacks = [
        *(VarianceFilter(0.5), RolloutMetrics(), EchoTrapDetector(baseline_iterations=3)),
        *(watch, saver),
    ]
    trainer = make_trainer(folder, 6, callbacks, enable_checkpointing=True, limit_val_batches=0)
    ckpt_path = folder / "last.ckpt" if resume else None
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return module, watch


def test_a_mixture_trains_logs_each_environment_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, watched = fit(tmp_path / "whole")
    with pytest.raises(SystemExit):
        fit(tmp_path / "parts", dies_at=4)
    resumed, went_on = fit(tmp_path / "parts", resume=True)
    for iteration in (4, 5):
        assert facts(went_on.played[iteration]) == facts(watched.played[iteration])
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name

    seen = [fact for played in watched.played.values() for fact in facts(played)]
    counts = {name: sum(env == name for *_, env, _ in seen) for name in ("named", "stairs")}
    assert 0 < counts["stairs"] < counts["named"] < len(seen)
    stairs = [seed for _, seed, env, _ in seen if env == "stairs"]
    assert len(set(stairs)) < len(stairs), "level replay"
    for name in ("named", "stairs", "mute"):
        assert {
            *(f"rollout/{name}/success", f"rollout/{name}/return", f"rollout/{name}/tokens"),
            *(f"rollout/{name}/share_of_tokens", f"rollout/{name}/kept_fraction"),
            f"collapse/{name}/level",
        } <= watched.logged.keys()
    assert "rollout/success_at/named/lit" in watched.logged
    assert "rollout/running_success/named/lit" in watched.logged


def test_each_environment_has_its_own_limit_of_actions_and_its_experts_share() -> None:
    data = make_data()
    assert data.dialogues.actions_per_turn_in("mute") == 1
    assert data.dialogues.actions_per_turn_in("stairs") == 2
    counts = {name: own.demonstrations for name, own in data.teaching.warm_starts.items()}
    assert counts == {"named": 7, "stairs": 5}, "3 to 2; the mute one has no expert"
    chosen = WarmStart(iterations=1, demonstrations=10, difficulties=("named/lit",))
    own = make_data(warm_start=chosen).teaching.warm_starts
    assert (own["named"].difficulties, own["stairs"].difficulties) == (("lit",), ())


class Scores(RolloutCallback):
    """Note the evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, Sequence[TrajectoryGroup]] = {}

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
        self.groups[batch.eval_set] = batch.groups


def longest(groups: Iterable[TrajectoryGroup]) -> tuple[int, int]:
    """Return the most turns of a trajectory and the most actions of a turn."""
    turns = [trajectory.turns for group in groups for trajectory in group.trajectories]
    return max(map(len, turns)), max(len(turn.actions) for each in turns for turn in each)


def test_limits_of_an_environment_hold_wherever_it_is_played(tmp_path: Path) -> None:
    limits = {
        "named": TrajectoryLimits(max_turns=1),
        "stairs": TrajectoryLimits(max_actions_per_turn=1),
    }
    config, sampled = MixtureConfig(limits=limits), replace(ROLLOUT, num_groups=12)
    data, watch, scores = make_data(mixture=config, rollout=sampled), Watch(None), Scores()
    make_trainer(tmp_path, 3, [watch, scores]).fit(make_learner(), datamodule=data)
    played = groups_by_env(group for groups in watch.played.values() for group in groups)
    for found in (
        played,
        {"named": scores.groups["named"], "stairs": scores.groups["stairs_eval"]},
    ):
        assert longest(found["named"])[0] == 1
        assert longest(found["stairs"]) == (2, 1)
    chats = data.dialogues.chats(make_learner())
    assert {name: chat.max_actions_per_turn for name, chat in chats.items()} == {
        **{"named": 2, "stairs": 1, "mute": 1}
    }


def test_demonstrations_of_a_mixture_are_numbered_through_and_told_by_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = make_data()
    make_trainer(tmp_path, 1, [], limit_val_batches=0).fit(make_learner(), datamodule=data)
    assert data.teaching.demonstrations(data.attached_trainer).demonstration_ids.tolist() == list(
        range(12)
    )
    told = capsys.readouterr().out
    assert "warm start: named: 7 demonstrations" in told
    assert "warm start: stairs: 5 demonstrations" in told


def test_the_vocabulary_is_the_union() -> None:
    alone = set(make_data(envs={}, env=Lamp(), mixture=MixtureConfig()).vocabulary())
    mixed = set(make_data().vocabulary())
    assert {"lit", "dark"} <= mixed
    assert (
        alone
        - set(make_data(envs={"a": Lamp(), "b": NamedLamp()}, mixture=MixtureConfig()).vocabulary())
        == set()
    )


def test_fingerprints_name_every_environment() -> None:
    keys = set(make_data().code_fingerprints())
    assert {"data.envs.named", "data.envs.stairs", "data.envs.mute"} <= keys


def test_a_single_environment_has_no_traces_of_mixtures() -> None:
    data = make_data(envs={}, env=NamedLamp(), mixture=MixtureConfig())
    data.trainer = cast(Any, type("T", (), {"lightning_module": type("M", (), {"iteration": 1})})())
    assert not data.is_mixture
    assert list(data.envs) == [""]
    assert set(data.state_dict()) == {"seeds", "progress", "by_start", "lost_in_a_row"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"env": Lamp()}, r"data\.env is Lamp, but data\.envs has named, stairs, mute"),
        ({"envs": {}}, r"data\.env must be set: give a config first"),
        ({"envs": {"only": Lamp()}}, r"data\.envs has only alone"),
        ({"envs": {"a/b": Lamp(), "c": Lamp()}}, r"a word without a slash"),
        ({"envs": {}, "env": Lamp()}, r"data\.mixture is set, but data\.envs is empty"),
        ({"envs": {"a": Lamp(), "b": Lamp()}}, r"mixture\.shares names 'named'"),
        (
            {"warm_start": WarmStart(iterations=1, difficulties=("lit",))},
            r"data\.warm_start\.difficulties has 'lit'; .* such as named/lit",
        ),
        (
            {"mixture": MixtureConfig(curricula={"mute": TargetSuccess()})},
            r"curriculum TargetSuccess chooses by difficulty, but Mute names no difficulty",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_data(**changes)


def test_a_mixture_that_nobody_can_teach_is_refused() -> None:
    data = make_data(envs={"a": Mute(), "b": Mute()}, mixture=MixtureConfig())
    with pytest.raises(ValueError, match="but Mute has no expert_turn"):
        data.check_learner(make_learner())
