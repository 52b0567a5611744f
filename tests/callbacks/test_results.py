"""``results.json`` is kept whatever happens to the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from callbacks import IterationAxis, Results, RolloutMetrics
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.hindsight import HindsightImitation, Solutions
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import TinyData, TinyModule, make_group, make_trainer
from tests.support.toy_env import PROMPTS, Stairs, make_learner


def mixed(iteration: int) -> list[TrajectoryGroup]:
    return [make_group([0.0, 1.0, 1.0, 2.0], group_id=i) for i in range(4)]


def read(folder: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((folder / "results.json").read_text()))


class StopIn(RolloutCallback):
    """Do something in the n-th collection."""

    def __init__(self, iteration: int, error: BaseException | None = None) -> None:
        super().__init__()
        self.at, self.error = iteration, error

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        if iteration == self.at:
            if self.error is not None:
                raise self.error
            self.reason = "this is a test"
            trainer.should_stop = True


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = TinyData(mixed, warm_iterations=1)
    module = TinyModule({"train/policy_loss": 0.123456789, "train/imitation_loss": 2.0})
    callbacks = [RolloutMetrics(), Results(temperatures=(0.5, 0.0))]
    make_trainer(tmp_path, 4, callbacks).fit(module, datamodule=data)
    results = read(tmp_path)
    assert (results["status"], results["reason"], results["iterations"]) == ("finished", "", 4)
    assert (results["demonstrations"], results["learned_by"]) == (1000, "")
    assert (results["trajectories"], results["sampled_tokens"]) == (48, 96)
    assert results["tokens_per_second"] > 0
    told = [(e["policy"], e["eval_set"], e["temperature"]) for e in results["evaluations"]]
    assert told == [
        ("random", "easy", None),
        ("random", "hard", None),
        ("expert", "easy", None),
        ("expert", "hard", None),
        ("untrained", "easy", 0.5),
        ("untrained", "hard", 0.5),
        ("warm-started", "easy", 0.5),
        ("warm-started", "easy", 0.0),
        ("warm-started", "hard", 0.5),
        ("final", "easy", 0.5),
        ("final", "easy", 0.0),
        ("final", "hard", 0.5),
    ]
    weights = [weight for weight, *_ in data.evaluator.evaluated]
    assert weights[:2] == [1.0, 1.0]  # untrained: before the first update
    assert weights[2:5] == pytest.approx([0.8] * 3)
    assert weights[5:] == pytest.approx([0.8**4] * 3)
    history = results["history"]
    assert history["iteration"] == [1, 2, 3, 4]
    assert history["phase"] == ["warm_start", "rl", "rl", "rl"]
    assert history["rollout/success"] == [None, 0.75, 0.75, 0.75]
    assert history["train/policy_loss"] == [0.12346] * 4
    assert history["train/imitation_loss"] == [2.0, None, None, None]
    assert not list(tmp_path.glob("*.tmp"))
    printed = capsys.readouterr().out
    assert "final" in printed
    assert "80.0 % [49.0, 94.3]" in printed
    assert "finished; 4 iterations in" in printed
    assert " s; rollout: " in printed


def test_a_policy_that_knows_its_training_starts_alone_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def solved(iteration: int) -> list[TrajectoryGroup]:
        return [make_group([1.0] * 4, group_id=i) for i in range(4)]

    told = "on the training rollouts of the last 6 iterations, but is 80.0% on easy at T=1:"
    for name, has_same_task in (("same", True), ("other", False)):
        data = TinyData(solved)
        if not has_same_task:
            data.envs = {"": Stairs()}
        callbacks = [RolloutMetrics(), Results(temperatures=(0.5, 1.0))]
        make_trainer(tmp_path / name, 6, callbacks).fit(TinyModule(), datamodule=data)
        assert (told in capsys.readouterr().out) == has_same_task


class Own(RolloutCallback):
    """Records and logs metrics of names that no shipped part has, in every second iteration."""

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, groups: Any) -> None:
        if self.iteration % 2 == 0:
            self.record({"mine/x": float(self.iteration), "odd name": 0.5})

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if self.iteration % 2 == 0:
            trainer.lightning_module.log(
                "logged", 7.0 + self.iteration, on_step=False, on_epoch=True
            )


def test_the_x_axis_of_the_loggers_is_no_metric(tmp_path: Path) -> None:
    callbacks = [IterationAxis(), Results((0.5,))]
    make_trainer(tmp_path, 2, callbacks).fit(TinyModule(), datamodule=TinyData(mixed))
    assert "step" not in read(tmp_path)["history"]


def test_metrics_of_a_users_callback_are_kept_where_they_were_measured(tmp_path: Path) -> None:
    callbacks = [Own(), Results((0.5,))]
    make_trainer(tmp_path, 4, callbacks).fit(TinyModule(), datamodule=TinyData(mixed))
    history = read(tmp_path)["history"]
    assert history["mine/x"] == [0.0, None, 2.0, None]
    assert history["odd name"] == [0.5, None, 0.5, None]
    assert history["logged"] == [7.0, None, 9.0, None]


def test_without_warm_start_the_untrained_policy_is_scored_in_full(tmp_path: Path) -> None:
    make_trainer(tmp_path, 1, [Results((0.5, 1.0))]).fit(TinyModule(), datamodule=TinyData(mixed))
    told = [e["temperature"] for e in read(tmp_path)["evaluations"] if e["policy"] == "untrained"]
    assert told == [0.5, 1.0, 0.5]


def test_only_a_warm_start_is_not_evaluated_twice_and_has_no_rates_of_rollouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = TinyData(mixed, warm_iterations=2)
    callbacks = [RolloutMetrics(), Results((0.5,))]
    make_trainer(tmp_path, 2, callbacks).fit(TinyModule(), datamodule=data)
    printed = capsys.readouterr().out
    assert "finished; 2 iterations in" in printed
    assert "trajectories/s" not in printed
    assert len(data.evaluator.evaluated) == 4
    scores = {(e["policy"], e["eval_set"]): e["success"] for e in read(tmp_path)["evaluations"]}
    assert scores["final", "hard"] == scores["warm-started", "hard"]


def test_scores_of_validations_are_kept_where_they_were_measured(tmp_path: Path) -> None:
    data = RolloutDataModule(
        env=Stairs(),
        eval_sets={"default": Stairs()},
        prompts=PROMPTS,
        rollout=RolloutConfig(
            num_groups=2, group_size=2, max_turns=3, max_actions_per_turn=1, max_response_tokens=4
        ),
        evaluation=EvaluationConfig(size=2),
    )
    trainer = make_trainer(tmp_path, 5, [Results((0.5,))], check_val_every_n_epoch=2)
    trainer.fit(make_learner(), datamodule=data)
    success = read(tmp_path)["history"]["val/default/success"]
    assert [value is not None for value in success] == [False, True, False, True, False]


def test_a_resumed_run_carries_its_entries_on(tmp_path: Path) -> None:
    def fit(epochs: int, ckpt: str | None) -> TinyData:
        data = TinyData(mixed, warm_iterations=1)
        saver = ModelCheckpoint(tmp_path, save_last=True)
        callbacks = [RolloutMetrics(), Results((0.5,)), saver]
        trainer = make_trainer(tmp_path, epochs, callbacks, enable_checkpointing=True)
        trainer.fit(TinyModule(), datamodule=data, ckpt_path=ckpt)
        return data

    fit(2, None)
    seconds = read(tmp_path)["seconds"]
    data = fit(4, str(tmp_path / "last.ckpt"))
    results = read(tmp_path)
    assert results["history"]["iteration"] == [1, 2, 3, 4]
    assert results["trajectories"] == 48
    assert results["seconds"] >= seconds * 0.5
    assert len(data.evaluator.evaluated) == 2  # only the final policy, on both evaluation sets
    assert [e["policy"] for e in results["evaluations"]] == [
        policy
        for policy in ("random", "expert", "untrained", "warm-started", "final")
        for _ in range(2)
    ]


def test_scores_of_another_evaluation_set_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(epochs: int, *, is_changed: bool) -> str:
        data, last = TinyData(mixed), tmp_path / "last.ckpt"
        if is_changed:
            build = data.evaluator.evaluation_set
            sets = {"easy": SimpleNamespace(fingerprint="12:easy"), "hard": build("hard")}
            monkeypatch.setattr(data.evaluator, "evaluation_set", sets.__getitem__)
        callbacks = [Results((0.5,)), ModelCheckpoint(tmp_path, save_last=True)]
        trainer = make_trainer(tmp_path, epochs, callbacks, enable_checkpointing=True)
        ckpt = str(last) if last.exists() else None
        trainer.fit(TinyModule(), datamodule=data, ckpt_path=ckpt)
        return capsys.readouterr().out

    assert "warning: data.eval_sets" not in fit(1, is_changed=False)
    assert "warning: data.eval_sets" not in fit(2, is_changed=False)
    told = fit(3, is_changed=True)
    assert "data.eval_sets.easy has other starts (12:easy) than its scores so far (10:easy)" in told
    assert "data.eval_sets.hard has other starts" not in told


def test_a_run_that_is_made_longer_twice_keeps_the_scores_of_its_latest_end(
    tmp_path: Path,
) -> None:
    def fit(epochs: int, *more: Callback) -> list[int]:
        last = tmp_path / "last.ckpt"
        saver = ModelCheckpoint(tmp_path, save_last=True)
        callbacks = [*more, Results((0.5,)), saver]
        trainer = make_trainer(tmp_path, epochs, callbacks, enable_checkpointing=True)
        ckpt = str(last) if last.exists() else None
        trainer.fit(TinyModule(), datamodule=TinyData(mixed), ckpt_path=ckpt)
        return final()

    def final() -> list[int]:
        return [e["iterations"] for e in read(tmp_path)["evaluations"] if e["policy"] == "final"]

    assert fit(2) == [2, 2]
    assert fit(3) == [3, 3]
    with pytest.raises(OSError, match="no space"):
        fit(5, StopIn(4, OSError("no space")))
    assert final() == [3, 3]
    assert fit(5) == [5, 5]


def test_a_run_that_ends_before_its_first_iteration_keeps_its_scores(tmp_path: Path) -> None:
    class OutOfTime(Callback):
        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            trainer.should_stop = True

    def fit(*callbacks: Callback, **options: Any) -> list[dict[str, Any]]:
        saver, results = ModelCheckpoint(tmp_path, save_last=True), Results((0.5,))
        trainer = make_trainer(tmp_path, 9, [*callbacks, results, saver], enable_checkpointing=True)
        trainer.fit(TinyModule(), datamodule=TinyData(mixed), **options)
        return [e for e in read(tmp_path)["evaluations"] if e["policy"] == "final"]

    assert len(before := fit(StopIn(3))) == 2
    assert fit(OutOfTime(), ckpt_path=str(tmp_path / "last.ckpt")) == before


def test_scores_stand_beside_what_they_owe_to_hindsight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = TinyData(mixed)
    data.solutions = Solutions(
        HindsightImitation(symmetries=True),
        {"": Stairs()},
        {"": RolloutConfig()},
        think=True,
        run_seed=0,
    )
    make_trainer(tmp_path, 1, [Results(temperatures=(0.5,))]).fit(TinyModule(), datamodule=data)
    told = read(tmp_path)["learned_by"]
    assert "symmetries of the task" in told
    assert f"\n\nlearned by {told}\n\nfinished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("warm_start", "critic_only", "beginning"),
    [(2, 0, ""), (3, 0, ""), (1, 1, "imitation of its own"), (1, 0, "RL and imitation")],
)
def test_rl_that_did_not_change_the_policy_is_not_said_to_have_taught_it(
    warm_start: int, critic_only: int, beginning: str, tmp_path: Path
) -> None:
    data, module = TinyData(mixed, warm_start), TinyModule()
    module.critic_only_iterations = critic_only
    rollouts = {"": RolloutConfig()}
    data.solutions = Solutions(
        HindsightImitation(), {"": Stairs()}, rollouts, think=True, run_seed=0
    )
    make_trainer(tmp_path, 2, [Results(temperatures=(0.5,))]).fit(module, datamodule=data)
    told = read(tmp_path)["learned_by"]
    assert told.startswith(beginning) if beginning else told == ""


@pytest.mark.parametrize("iteration", [0, 2])
def test_a_stopped_run_says_why(tmp_path: Path, iteration: int) -> None:
    callbacks = [StopIn(iteration), Results((0.5,))]
    make_trainer(tmp_path, 9, callbacks).fit(TinyModule(), datamodule=TinyData(mixed))
    results = read(tmp_path)
    assert (results["status"], results["reason"]) == ("stopped", "this is a test")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"max_time": "00:00:00:00"}, "by trainer.max_time, 0:00:00 in all: a resumed run needs"),
        ({"callbacks": [EarlyStopping("rollout/success", patience=1, mode="max")]}, "by EarlyStop"),
        ({"max_steps": 0}, "by trainer.max_steps, 0"),
    ],
)
def test_a_limit_of_lightning_that_ended_a_run_is_named(
    tmp_path: Path, limit: dict[str, Any], reason: str
) -> None:
    callbacks = [*limit.pop("callbacks", ()), RolloutMetrics(), Results((0.5,))]
    trainer = make_trainer(tmp_path, 9, callbacks, **limit)
    trainer.fit(TinyModule(), datamodule=TinyData(mixed))
    results = read(tmp_path)
    assert results["status"] == "stopped"
    assert results["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("error", "kind", "status", "reason"),
    [
        (KeyboardInterrupt(), SystemExit, "interrupted", "KeyboardInterrupt"),
        (OSError("no space"), OSError, "failed", "OSError: no space"),
        (SystemExit(3), SystemExit, "failed", "it ends the program, sys.exit(3)"),
    ],
)
def test_an_exception_leaves_a_valid_file(
    tmp_path: Path, error: BaseException, kind: type[BaseException], status: str, reason: str
) -> None:
    trainer = make_trainer(tmp_path, 9, [StopIn(2, error), Results((0.5,))])
    with pytest.raises(kind):
        trainer.fit(TinyModule(), datamodule=TinyData(mixed))
    results = read(tmp_path)
    assert (results["status"], results["reason"].partition(" (")[0]) == (status, reason)
    assert results["iterations"] == 2


def test_of_an_error_of_several_lines_one_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ConfigError("no space\n  free some")
    trainer = make_trainer(tmp_path, 9, [StopIn(2, error), Results((0.5,))])
    with pytest.raises(ConfigError, match="no space"):
        trainer.fit(TinyModule(), datamodule=TinyData(mixed))
    assert "failed: no space; 2 iterations in" in capsys.readouterr().out
    assert read(tmp_path)["reason"] == "no space\n  free some"


def test_the_file_is_up_to_date_during_the_run(tmp_path: Path) -> None:
    seen = []

    class Look(RolloutCallback):
        def on_rollout_end(self, *_: Any) -> None:
            if (tmp_path / "results.json").exists():
                seen.append((read(tmp_path)["status"], read(tmp_path)["iterations"]))

    callbacks = [Results((0.5,)), Look()]
    make_trainer(tmp_path, 3, callbacks).fit(TinyModule(), datamodule=TinyData(mixed))
    assert seen == [("running", 1), ("running", 2)]


@pytest.mark.parametrize(
    ("key", "value"), [("temperatures", ()), ("temperatures", (-1.0,)), ("write_every", 0)]
)
def test_bad_arguments_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{key} is"):
        Results(**{key: value})


def test_state_is_plain(tmp_path: Path) -> None:
    results = Results((0.5,))
    make_trainer(tmp_path, 1, [results]).fit(TinyModule(), datamodule=TinyData(mixed))
    state = json.loads(json.dumps(results.state_dict()))
    again = Results((0.5,))
    again.load_state_dict(state)
    assert again.evaluations == results.evaluations
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state


def test_the_history_has_the_metrics_of_an_iteration_without_an_update(tmp_path: Path) -> None:
    """They are logged at its end, by callbacks whose turn comes after this one's."""

    class Discard(RolloutCallback):
        def on_rollout_end(self, *_: Any) -> None:
            self.discard = self.iteration == 1

    callbacks = [Discard(), Results((0.5,)), RolloutMetrics()]
    make_trainer(tmp_path, 3, callbacks).fit(TinyModule(), datamodule=TinyData(mixed))
    assert None not in read(tmp_path)["history"]["rollout/success"]
