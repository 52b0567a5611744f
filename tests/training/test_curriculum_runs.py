"""A curriculum in a run: its seeds, its memory, and what a run without one is spared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout import curriculum as curricula
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.curriculum import Curriculum, TargetSuccess, Uniform
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.seeds import group_seeds
from ragen_pl.rollout.stats import Tally, sum_tallies, tally_by_difficulty
from ragen_pl.training.collection import DynamicSampling
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation_sets import EvaluationConfig
from tests.support.doubles import make_trainer
from tests.support.ranks import on_ranks
from tests.support.toy_env import PROMPTS, Lamp, NamedLamp, make_learner
from tests.support.watch import Watch

ROLLOUT = RolloutConfig(
    num_groups=4,
    group_size=3,
    max_turns=2,
    max_actions_per_turn=1,
    max_response_tokens=10,
    max_context=128,
)
WARM_START = WarmStart(iterations=1, demonstrations=16, batch_size=8, updates_per_iteration=20)


def make_data(
    curriculum: Curriculum | None = None, env: TextEnv | None = None, **changes: Any
) -> RolloutDataModule:
    chosen = {} if curriculum is None else {"curriculum": curriculum}
    return RolloutDataModule(
        env=env or NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        evaluation=EvaluationConfig(size=4),
        **{"rollout": ROLLOUT, "warm_start": WARM_START, "run_seed": 3, **chosen, **changes},
    )


def at(iteration: int, data: RolloutDataModule) -> RolloutDataModule:
    """Let a data module stand in a run that has come this far."""
    data.trainer = cast(Any, SimpleNamespace(lightning_module=SimpleNamespace(iteration=iteration)))
    return data


def test_without_a_curriculum_the_seeds_are_those_of_the_stream() -> None:
    data = make_data()
    assert data.curriculum == Uniform()
    for iteration in range(1, 6):
        for nth in range(3):
            assert data.group_seeds(iteration, nth) == group_seeds(3, (iteration - 1) * 4, 4, nth)
    assert at(5, data).state_dict() == {
        "seeds": {"iteration": 4, "position": 16},
        "progress": {},
        "lost_in_a_row": 2,
    }
    assert not data.chooses_starts


def test_no_start_is_played_twice_whatever_is_resumed() -> None:
    seen: set[int] = set()
    iteration, state = 1, None
    plans: Sequence[tuple[Curriculum, int]] = [
        (TargetSuccess(), 4),
        (TargetSuccess(), 9),
        (Uniform(), 9),
        (TargetSuccess(pool_factor=2), 3),
    ]
    for curriculum, groups in plans:
        data = make_data(curriculum, rollout=replace(ROLLOUT, num_groups=groups))
        if state is not None:
            data.load_state_dict(state)
        for _ in range(4):
            for nth in range(2):
                chosen = data.group_seeds(iteration, nth)
                ids = [start.group_id for start in chosen]
                assert ids == list(range(nth * groups, (nth + 1) * groups))
                assert not seen & {start.seed for start in chosen}
                seen |= {start.seed for start in chosen}
            iteration += 1
        state = at(iteration, data).state_dict()


def test_the_choice_is_a_function_of_run_iteration_and_collection() -> None:
    def chosen(run_seed: int, iteration: int, nth: int) -> list[int]:
        data = make_data(TargetSuccess(), run_seed=run_seed)
        position = (iteration - 1) * 16
        first = group_seeds(run_seed, position, 16, nth)[0].seed
        return [start.seed - first for start in data.group_seeds(iteration, nth)]

    assert chosen(0, 1, 0) == chosen(0, 1, 0)
    assert (
        len({tuple(chosen(*place)) for place in [(0, 1, 0), (0, 2, 0), (0, 1, 1), (1, 1, 0)]}) > 2
    )


def test_ranks_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"seeds": {"iteration": 0, "position": 0}, "progress": {"lit": [1, 4], "dark": [4, 4]}}

    def choose(rank: int = 0) -> list[GroupSeed]:
        data = make_data(TargetSuccess())
        data.load_state_dict(state)
        return data.group_seeds(2, 0)

    alone = choose()
    assert on_ranks(2, choose, monkeypatch, curricula) == [alone, alone]


def test_progress_from_before_there_were_curricula_is_none() -> None:
    data = make_data(TargetSuccess())
    data.load_state_dict({"seeds": {"iteration": 3, "position": 12}})
    assert data.running_success == {}
    assert min(start.seed for start in data.group_seeds(4, 0)) >= group_seeds(3, 12, 1, 0)[0].seed


def test_an_environment_without_difficulties_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"data\.curriculum is TargetSuccess, but Lamp names no"):
        make_data(TargetSuccess(), Lamp())


class HardLamp(NamedLamp):
    """A lamp in which only the press of one button succeeds."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, ends, cut, _ = super().step(action)
        return text, reward, ends, cut, {"success": ends and action == "on"}


CHOOSING = TargetSuccess(pool_factor=3, decay=0.5)


def fit(folder: Path, *, dies_at: int | None = None, resume: bool = False) -> tuple[Any, Watch]:
    module, watch = make_learner(), Watch(dies_at)
    saver = ModelCheckpoint(folder, save_last=True)
    dynamic = DynamicSampling(max_collections=2)
    data = make_data(CHOOSING, HardLamp(), dynamic_sampling=dynamic)
    trainer = make_trainer(
        folder, 5, [watch, saver], enable_checkpointing=True, limit_val_batches=0
    )
    ckpt_path = folder / "last.ckpt" if resume else None
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return module, watch


def test_a_run_learns_from_every_collection_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, watched = fit(tmp_path / "whole")
    with pytest.raises(SystemExit):
        fit(tmp_path / "parts", dies_at=3)
    resumed, went_on = fit(tmp_path / "parts", resume=True)

    progress: Any = {}
    for iteration, groups in watched.played.items():
        progress = CHOOSING.learn(progress, sum_tallies([tally_by_difficulty(groups)]))
        assert watched.running[iteration] == {name: t.success for name, t in progress.items()}
    assert max(len(groups) for groups in watched.played.values()) == 8, "a second collection"
    weights = {group.weight for groups in watched.played.values() for group in groups}
    assert weights > {1.0}, "other weights, after a first choice that knows nothing"

    for iteration in (3, 4):
        assert went_on.running[iteration] == watched.running[iteration]
        one, other = went_on.played[iteration], watched.played[iteration]
        assert [(g.seed, g.group_id, g.weight) for g in one] == [
            (g.seed, g.group_id, g.weight) for g in other
        ]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_what_is_saved_is_plain() -> None:
    data = at(4, make_data(TargetSuccess()))
    data._progress = {"lit": Tally(2.0, 3.0)}
    state = data.state_dict()
    assert state["progress"] == {"lit": [2.0, 3.0, 0.0]}
    again = make_data(TargetSuccess())
    again.load_state_dict(state)
    assert again.running_success == {"lit": pytest.approx(2 / 3)}
    assert again.group_seeds(4, 0) == data.group_seeds(4, 0)
