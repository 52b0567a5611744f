"""Teachers within a run: what they teach is learned, shared by ranks, saved and resumed."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Trainer

from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout import demonstrations
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.teachers import (
    Lessons,
    Offline,
    RecordedWorldModel,
    Solver,
    Teacher,
    TeachingTask,
    WorldModel,
)
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import DemonstrationSet
from tests.support.doubles import make_trainer
from tests.support.ranks import on_ranks
from tests.support.recorded_play import embedded_chat, record_expert
from tests.support.toy_env import PROMPTS, Stairs, make_learner

ROLLOUT = RolloutConfig(
    num_groups=2,
    group_size=4,
    max_turns=4,
    max_actions_per_turn=1,
    max_response_tokens=20,
    max_context=256,
)
WARM = WarmStart(iterations=2, updates_per_iteration=30, demonstrations=16, batch_size=8)


def make_data(teacher: Teacher, **changes: Any) -> RolloutDataModule:
    given = {
        "env": Stairs(),
        "eval_sets": {"default": Stairs()},
        "prompts": PROMPTS,
        "rollout": ROLLOUT,
        "warm_start": replace(WARM, teacher=teacher),
        "evaluation": EvaluationConfig(size=4),
    }
    return RolloutDataModule(**{**given, **changes})


def learner_of(data: RolloutDataModule) -> StarPO:
    module = make_learner()
    module.vocabulary = list(data.vocabulary())
    return module


def fit(
    folder: Path, teacher: Teacher, epochs: int = 2, ckpt: Path | None = None, **keys: Any
) -> tuple[StarPO, dict[str, torch.Tensor]]:
    data = make_data(teacher, warm_start=replace(WARM, teacher=teacher, **keys))
    module, trainer = learner_of(data), make_trainer(folder, epochs, [])
    trainer.fit(module, datamodule=data, ckpt_path=ckpt)
    trainer.save_checkpoint(folder / "now.ckpt")
    return module, dict(trainer.callback_metrics)


def same_weights(one: StarPO, other: StarPO) -> bool:
    mine, others = one.state_dict(), other.state_dict()
    return all(torch.equal(value, others[name]) for name, value in mine.items())


def test_predictions_are_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is predicted right at first, most of it after the warm start."""
    fit(tmp_path, WorldModel(held_out=12), epochs=3, updates_per_iteration=100)
    told = [line for line in capsys.readouterr().out.splitlines() if "answers right" in line]
    shares = [float(line.split()[2].rstrip("%")) for line in told]
    assert [line.split()[-2] for line in told] == ["0", "1", "2"]
    assert shares[0] == 0.0
    assert shares[2] > 60.0


@pytest.mark.parametrize("kind", [Offline, RecordedWorldModel])
def test_recorded_play_is_learned_and_saved_with_the_run(
    tmp_path: Path, kind: type[Offline | RecordedWorldModel]
) -> None:
    """A run whose file is gone goes on bit for bit, since the checkpoint holds the lessons, and
    asks the same questions."""
    teacher = kind(record_expert(tmp_path / "play.jsonl", Stairs(), ROLLOUT, PROMPTS))
    for name in ("whole", "half", "resumed"):
        (tmp_path / name).mkdir()
    whole, metrics = fit(tmp_path / "whole", teacher)
    half, before = fit(tmp_path / "half", teacher, epochs=1)
    assert metrics["train/imitation_loss"] < 0.5 * before["train/imitation_loss"]
    (tmp_path / "play.jsonl").unlink()
    resumed, after = fit(tmp_path / "resumed", teacher, ckpt=tmp_path / "half" / "now.ckpt")
    assert not same_weights(half, whole)
    assert same_weights(resumed, whole)
    assert ("train/right_answers" in metrics) == (kind is RecordedWorldModel)
    assert after.get("train/right_answers") == metrics.get("train/right_answers")
    saved = torch.load(tmp_path / "whole" / "now.ckpt", weights_only=False)
    assert "demonstrations" not in saved["RolloutDataModule"], "the warm start is over"


def test_a_world_model_goes_on_bit_for_bit(tmp_path: Path) -> None:
    teacher = WorldModel(held_out=3)
    for name in ("whole", "half", "resumed"):
        (tmp_path / name).mkdir()
    whole, metrics = fit(tmp_path / "whole", teacher)
    assert 0.0 <= float(metrics["train/right_answers"]) <= 1.0
    fit(tmp_path / "half", teacher, epochs=1)
    resumed, _ = fit(tmp_path / "resumed", teacher, ckpt=tmp_path / "half" / "now.ckpt")
    assert same_weights(resumed, whole)


# --- who teaches ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shy(Teacher):
    """A teacher whose lessons are the first rank's alone."""

    teaches_on_first_rank: ClassVar[bool] = True
    calls: list[int]

    def teach(self, task: TeachingTask) -> Lessons:
        self.calls.append(task.first_seed)
        return Solver(0.0).teach(task)


@pytest.mark.parametrize("alone", [True, False])
def test_ranks_are_taught_the_same(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """Whether one rank teaches, or each would teach otherwise."""
    calls: list[int] = []
    protocol = embedded_chat(Stairs(), PROMPTS, 1)

    def teach(rank: int) -> Lessons:
        config = replace(WARM, teacher=Shy(calls) if alone else Solver(0.0))
        first_seed = 0 if alone else 100 * rank
        return demonstrations.demonstrate(
            Stairs(), protocol, ROLLOUT, config, first_seed=first_seed
        )

    one, other = on_ranks(2, teach, monkeypatch, demonstrations)
    assert one == other
    assert calls == [0] * alone


def test_keys_of_the_teacher_may_be_given_in_short(tmp_path: Path) -> None:
    short = WarmStart(random_turns=0.1, imitate_random=True)
    assert short.chosen_teacher == Solver(0.1, imitate_random=True)
    assert WarmStart().chosen_teacher == Solver(0.3, imitate_random=False)
    assert WarmStart(random_turns=0.1, teacher=WorldModel()).chosen_teacher == WorldModel(
        random_turns=0.1
    )
    with pytest.raises(ValueError, match=r"random_turns is 0.1, but .* Offline.*to null"):
        WarmStart(random_turns=0.1, teacher=Offline(("play.jsonl",)))
    with pytest.raises(ValueError, match=r"warm_start\.random_turns is 1"):
        WarmStart(random_turns=1.0)


def test_an_environment_without_an_expert_can_be_taught_by_others() -> None:
    class Mute(Stairs):
        expert_turn = TextEnv.expert_turn

    data = make_data(Solver(), env=Mute())
    data.setup("validate")  # who plays, pins or scores a policy has no use for a teacher
    with pytest.raises(ValueError, match=r"iterations is 2, but Mute has no expert_turn"):
        data.check_learner(learner_of(data))
    for teacher in (WorldModel(), Offline(("play.jsonl",))):
        taught = make_data(teacher, env=Mute())
        taught.check_learner(learner_of(taught))


def test_a_mixture_is_taught_where_it_can_be() -> None:
    class Wordy(Stairs):
        actions = None  # type: ignore[assignment]

    data = make_data(WorldModel(), env=None, envs={"named": Stairs(), "wordy": Wordy()})
    assert list(data.teaching.warm_starts) == ["named"]


def test_demonstrations_are_let_go_when_rl_begins(tmp_path: Path) -> None:
    data, kept = make_data(Solver(0.0)), list[int]()

    class Watch(RolloutCallback):
        def on_rollout_start(self, trainer: Trainer, *args: Any) -> None:
            gc.collect()
            alive = [each for each in gc.get_objects() if type(each) is DemonstrationSet]
            kept.append(len(alive))

    gc.collect()
    module, trainer = learner_of(data), make_trainer(tmp_path, 4, [Watch()])
    trainer.fit(module, datamodule=data)
    assert kept == [0, 0]
    state = data.teaching.state_dict(trainer)
    assert state == {}
    again = data.teaching.demonstrations(trainer)
    assert len(torch.unique(again.demonstration_ids)) == WARM.demonstrations


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_that_ends_within_its_warm_start_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], epochs: int
) -> None:
    data = make_data(Solver(0.0))
    trainer = make_trainer(tmp_path, epochs, [])
    trainer.strategy.connect(learner_of(data))
    data.trainer = trainer
    data.setup("fit")
    shown = capsys.readouterr().out
    assert ("the run ends within the warm start" in shown) == (epochs == 1)


@pytest.mark.parametrize("epochs", [5, 6])
def test_a_run_whose_rl_trains_the_critic_alone_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], epochs: int
) -> None:
    """Two iterations of the warm start, as many as a supervised baseline has, and three of the
    critic: the policy's first update is in the sixth."""
    critic = CriticConfig(warmup_iterations=3)
    data, learner = make_data(Solver(0.0)), StarPO(algorithm=Algorithm(GAE(critic=critic)))
    trainer = make_trainer(tmp_path, epochs, [])
    trainer.strategy.connect(learner)
    data.trainer = trainer
    data.setup("fit")
    told = (
        f"trainer.max_epochs is {epochs}, but RL updates the policy only after 5 iterations: 2 of "
        "the warm start and 3 of the critic alone. The run ends with a policy that RL has not "
        "changed; raise trainer.max_epochs above 5, or lower the critic's warmup_iterations or "
        "data.warm_start.iterations"
    )
    assert (told in capsys.readouterr().out) == (epochs == 5)
