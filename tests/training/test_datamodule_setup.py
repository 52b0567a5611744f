"""Evaluation sets at the start of a run: their starts, and warnings about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ragen_pl.distributed import collectives as distributed
from ragen_pl.envs import Bandit, FrozenLake, Sokoban
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation import sets as evaluation_sets
from ragen_pl.training.evaluation.sets import EvaluationConfig
from tests.support.faulty import FaultyLamp
from tests.support.ranks import on_ranks
from tests.support.toy_env import NamedLamp

FEWER = (
    "distinct starts, fewer than data.evaluation.size 32: starts are played several times, and "
    "success is the mean over the distinct ones"
)


def make(env: TextEnv, **eval_sets: TextEnv) -> RolloutDataModule:
    return RolloutDataModule(env, eval_sets, evaluation=EvaluationConfig(size=32))


def test_an_eval_set_of_training_starts_warns(capsys: pytest.CaptureFixture[str]) -> None:
    make(Bandit(), few=Bandit(split="eval"), new=Bandit("named", split="eval")).setup("fit")
    assert capsys.readouterr().out == (
        f"data.eval_sets.few: 2 {FEWER}\n"
        "data.eval_sets.few: 2 of its 2 starts are among the run's first 256 training starts: "
        "success on these measures training, not generalization\n"
        f"data.eval_sets.new: 16 {FEWER}\n"
    )


class OneSeat(NamedLamp):
    """A lamp that burns in the same room at every start."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        return super().reset(seed=2 * (seed // 64), options=options)


def test_an_eval_set_that_lacks_a_difficulty_of_training_warns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = make(NamedLamp(), default=OneSeat())
    data.setup("fit")
    difficulties = {NamedLamp().difficulty_of(seed) for seed in range(8)}
    present = NamedLamp().difficulty_of(0)
    (absent,) = difficulties - {present}
    told = f"data.eval_sets.default: none of its 1 distinct starts has the difficulty {absent!r}"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [(0, 1, 0, 0), (0, 0, 0, 1)])
def test_a_difficulty_of_a_single_start_is_not_missed(seeds: tuple[int, ...]) -> None:
    few = evaluation_sets.EvaluationSet("few", NamedLamp(), 0, seeds, "", distinct=2)
    told = list(few.warnings(NamedLamp(), "data.env", range(64)))
    assert told
    assert not [line for line in told if "none of its" in line]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_evaluation_tells_once_that_starts_repeat(
    capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    data = make(Bandit(), few=Bandit(split="eval"), whole=Sokoban(split="eval"))
    data.setup(stage)
    assert capsys.readouterr().out == f"data.eval_sets.few: 2 {FEWER}\n"
    data.setup(stage)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_an_eval_set_of_other_starts_warns_of_nothing(
    kind: type[Sokoban | FrozenLake], capsys: pytest.CaptureFixture[str]
) -> None:
    make(kind(), default=kind(split="eval")).setup("fit")
    assert not capsys.readouterr().out


def test_an_eval_set_without_starts_names_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make(FrozenLake(), dry=FrozenLake(split="eval"))
    monkeypatch.setattr(FrozenLake, "reset", lambda *_, **__: 1 / 0)
    with pytest.raises(
        ConfigError, match=r"^data\.eval_sets\.dry: FrozenLake gave an evaluation set no start"
    ):
        data.evaluator.evaluation_set("dry")


def test_ranks_play_one_eval_set_where_a_server_failed_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seeds(rank: int) -> list[int]:
        env = FaultyLamp("reset", RuntimeError("away"), lambda env: env.seed % 7 == rank)
        data = make(NamedLamp(), default=NamedLamp())
        data.eval_sets["default"] = env
        return list(data.evaluator.evaluation_set("default").seeds)

    one, other = on_ranks(2, seeds, monkeypatch, evaluation_sets, distributed)
    assert one == other


def test_an_eval_set_of_another_game_warns(capsys: pytest.CaptureFixture[str]) -> None:
    make(Sokoban(), default=FrozenLake(split="eval")).setup("fit")
    assert capsys.readouterr().out == (
        "data.eval_sets.default is FrozenLake, but data.env is Sokoban: it evaluates a different "
        "task from the one trained on\n"
    )


def test_it_says_what_it_is_without_a_trainer() -> None:
    """What fails while parts are linked is told with this text, so it must not fail itself."""
    assert str(make(Sokoban(), default=Sokoban(split="eval"))) == "RolloutDataModule of Sokoban"


def test_loaders_without_a_trainer_say_whom_to_give_them_to() -> None:
    data = make(Sokoban(), default=Sokoban(split="eval"))
    with pytest.raises(ConfigError, match=r"trainer.fit\(module, datamodule=data\)"):
        next(iter(data.train_dataloader()))
