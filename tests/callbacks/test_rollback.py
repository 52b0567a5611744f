"""A collapse is undone bit for bit, a bounded number of times, alike on all ranks and on resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint

from callbacks import EchoTrapDetector, Rollback, VarianceFilter, echo_trap_detector
from ragen_pl.algorithms.filters import TopFraction
from ragen_pl.ops.echo_trap.assess import Assessment, Level
from ragen_pl.training.callback import RolloutCallback
from tests.support.collapsing_policy import Data, Learner, dead, good
from tests.support.doubles import TinyData, make_trainer

EPOCHS = 60


class Diary(RolloutCallback):
    """Note the state that plays each collection."""

    def __init__(self) -> None:
        super().__init__()
        self.played: dict[int, list[float]] = {}

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        self.played[iteration] = cast(Learner, module).state()


class SaveAll(Checkpoint):
    """Keep a checkpoint of every iteration."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / f"{trainer.current_epoch}.ckpt")


def make_rollback(**changes: Any) -> Rollback:
    return Rollback(**{"times": 1, "every_n_iterations": 2, "min_age": 3, **changes})


def fit(
    folder: Path, rollback: Rollback, *more: Callback, data: TinyData | None = None, **how: Any
) -> tuple[Learner, EchoTrapDetector]:
    module, detector = Learner(), EchoTrapDetector(baseline_iterations=3)
    callbacks = [VarianceFilter(), detector, rollback, *more]
    saves = any(isinstance(callback, Checkpoint) for callback in more)
    trainer = make_trainer(folder, EPOCHS, callbacks, enable_checkpointing=saves)
    trainer.fit(module, datamodule=data or Data(), **how)
    return module, detector


def test_a_driven_collapse_recovers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollback, diary = make_rollback(), Diary()
    module, detector = fit(tmp_path, rollback, diary)
    (event,) = rollback.events
    fallen, restored = event["iteration"] - 1, event["restored"] - 1
    assert abs(diary.played[fallen][0]) > 3
    assert fallen - restored > 5
    # The next collection is played by the very policy of then, moments and controllers included.
    assert diary.played[fallen + 1] == diary.played[restored]
    assert module.lr_scale == event["lr_scale"] == 0.5
    assert cast(Any, module.trainer).datamodule.forgotten == [restored]
    assert abs(module.weight.item()) < 0.1
    assert detector.reason is None
    # The norm of the last update before the rollback is not the restored policy's.
    assert detector._histories[""][event["restored"]].grad_norm is None
    assert module.trainer.callback_metrics["collapse/rollbacks"] == 1
    printed = capsys.readouterr().out
    assert (
        f"rollback 1 of 1 at iteration {fallen + 1}: restored the policy of iteration "
        f"{restored + 1}, learning rates × 0.5; " in printed
    )
    assert json.loads(json.dumps(rollback.results()))["rollbacks"] == rollback.events


def test_without_it_the_run_stays_collapsed(tmp_path: Path) -> None:
    module, detector = fit(tmp_path, Rollback())
    assert detector.reason is not None
    assert abs(module.weight.item()) > 3


def test_the_collapsed_collection_is_not_learned_from(tmp_path: Path) -> None:
    rollback = make_rollback()
    module, _ = fit(tmp_path, rollback)
    assert module.global_step == EPOCHS - 1


def test_the_collapsed_collection_keeps_its_alarm(tmp_path: Path) -> None:
    """Whoever records it is told what it was, though the policy of now is healthy again."""
    seen: dict[int, tuple[Level, Level]] = {}

    class Watch(RolloutCallback):
        def on_rollout_end(self, trainer: Any, *args: Any) -> None:
            detector = trainer.callbacks[1]
            seen[self.iteration + 1] = (detector.assessed.level, detector.level)

    rollback = make_rollback()
    fit(tmp_path, rollback, Watch())
    assert seen[rollback.events[0]["iteration"]] == (Level.RED, Level.GREEN)


def test_rollbacks_are_bounded_and_the_filter_tightens(tmp_path: Path) -> None:
    """What no rate cures is stopped in the end."""
    kept: list[float] = []

    class Watch(RolloutCallback):
        def on_rollout_start(self, trainer: Any, *args: Any) -> None:
            kept.append(trainer.callbacks[0].rule.fraction)

    data = TinyData(lambda iteration: good() if iteration < 12 else dead())
    rollback = make_rollback(times=2, filter_factor=0.5)
    module, detector = fit(tmp_path, rollback, Watch(), data=data)
    assert [event["lr_scale"] for event in rollback.events] == [0.5, 0.25]
    assert [event["keep_fraction"] for event in rollback.events] == [0.125, 0.0625]
    assert list(dict.fromkeys(kept)) == [0.25, 0.125, 0.0625]
    assert detector.reason is not None
    assert detector.reason.startswith("echo trap: red for 5 iterations in a row")
    assert cast(Any, module.trainer).callbacks[0].rule == TopFraction(0.25)


def test_a_resumed_run_is_led_back_alike(tmp_path: Path) -> None:
    """Whether it was interrupted before the rollback, in its empty iteration, or after."""
    rollback = make_rollback()
    module, detector = fit(tmp_path, rollback, SaveAll())
    fallen = rollback.events[0]["iteration"] - 1
    for epoch in (fallen - 4, fallen - 1, fallen, fallen + 1, fallen + 7):
        again = make_rollback()
        path = tmp_path / f"{epoch}.ckpt"
        resumed, other = fit(tmp_path / "again", again, ckpt_path=path, weights_only=True)
        assert again.events == rollback.events
        assert resumed.state() == module.state()
        assert resumed.lr_scale == 0.5
        assert resumed.global_step == module.global_step
        assert other._histories == detector._histories


def test_few_snapshots_are_kept_and_those_before_an_alarm_are_dropped(tmp_path: Path) -> None:
    rollback = Rollback(times=1, every_n_iterations=2, min_age=6, patience=4)
    places: list[list[int]] = []

    class Watch(RolloutCallback):
        def on_rollout_end(self, *args: Any) -> None:
            places.append([s.iteration for s in rollback._snapshots])

    data = TinyData(lambda iteration: good() if iteration < 15 else dead())
    fit(tmp_path, rollback, Watch(), data=data)
    assert places[0] == [0]
    assert max(map(len, places)) == 4
    assert places[14] == [7, 9, 11, 13]
    fallen = rollback.events[0]["iteration"] - 1
    assert places[fallen] == [places[fallen - 1][0]]


def test_long_steps_alone_leave_snapshots_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy is sound: to go back to before its first update would throw all away."""
    rollback = Rollback(times=1, every_n_iterations=2, min_age=6, patience=4)
    warned = Assessment(Level.AMBER, "long steps", {}, forewarns=True)
    monkeypatch.setattr(echo_trap_detector, "assess", lambda *_: warned)
    fit(tmp_path, rollback, data=TinyData(lambda iteration: good()))
    assert min(s.iteration for s in rollback._snapshots) >= EPOCHS - 10


def test_the_critics_head_start_belongs_to_the_first_snapshot(tmp_path: Path) -> None:
    class Critical(Learner):
        critic_only_iterations = 4

    rollback = make_rollback()
    callbacks = [EchoTrapDetector(baseline_iterations=3), rollback]
    trainer = make_trainer(tmp_path, 6, callbacks)
    trainer.fit(Critical(), datamodule=Data())
    assert [s.iteration for s in rollback._snapshots] == [4]


def test_no_detector_or_a_hastier_one_or_no_filter_is_refused() -> None:
    def check(rollback: Rollback, *others: Callback) -> None:
        trainer = SimpleNamespace(callbacks=[*others, rollback])
        rollback.check_run(cast(Any, trainer), cast(Any, None))

    check(Rollback(times=1), EchoTrapDetector())
    with pytest.raises(ValueError, match=r"rollback.times is 1, but no EchoTrapDetector"):
        check(Rollback(times=1))
    with pytest.raises(ValueError, match=r"rollback.patience is 5, but echo_trap.patience is 5"):
        check(Rollback(times=1, patience=5), EchoTrapDetector())
    check(Rollback(times=1, patience=5), EchoTrapDetector(stop=False))
    with pytest.raises(ValueError, match=r"rollback.filter_factor is 0.5"):
        check(Rollback(times=1, filter_factor=0.5), EchoTrapDetector())
    check(Rollback())
    with pytest.raises(ValueError, match=r"rollback\.min_age is 9, but rollback\.times is 0"):
        check(Rollback(min_age=9))


@pytest.mark.parametrize(
    "wrong", [{"times": -1}, {"patience": 0}, {"lr_factor": 0.0}, {"filter_factor": 2.0}]
)
def test_bad_arguments_are_refused(wrong: dict[str, Any]) -> None:
    (key,) = wrong
    with pytest.raises(ValueError, match=f"rollback.{key} is {wrong[key]}"):
        Rollback(**wrong)


def play_half(rank: int, folder: str) -> None:
    """Be one of two ranks; only the second one's agent falls silent."""
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    module: Any = Learner()
    optimizer = module.configure_optimizers()
    detector, rollback = EchoTrapDetector(baseline_iterations=3), make_rollback()
    trainer: Any = SimpleNamespace(
        callbacks=[detector, rollback],
        optimizers=[optimizer],
        is_global_zero=False,
        should_stop=False,
    )
    for iteration in range(40):
        groups = good()[2 * rank : 2 * rank + 2]
        if iteration >= 12 and (rank == 1 or iteration >= 14):
            groups = dead()[2 * rank : 2 * rank + 2]
        for callback in (detector, rollback):
            callback.begin_iteration(iteration)
            callback.on_rollout_start(trainer, module, iteration, 8)
            callback.on_collection_end(trainer, module, groups)
            callback.on_rollout_end(trainer, module, groups)
        if rollback.events:
            break
        module.weight.data += 1.0
    seen = {"events": rollback.events, "weight": module.weight.item()}
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.run
def test_two_ranks_go_back_together(tmp_path: Path) -> None:
    mp.spawn(play_half, args=(str(tmp_path),), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other
    assert one["weight"] == one["events"][0]["restored"]  # it began at 1 and grew by 1 each time


def test_one_rank_alone_takes_the_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should verdicts ever differ, both go back rather than hang."""
    from callbacks import rollback as implementation

    gone: list[str] = []
    monkeypatch.setattr(implementation, "gather_objects", lambda own: [own, True])
    monkeypatch.setattr(Rollback, "_roll_back", lambda *args: gone.append("back"))
    rollback = make_rollback()
    trainer: Any = SimpleNamespace(callbacks=[EchoTrapDetector(), rollback])
    rollback.on_rollout_end(trainer, cast(Any, None), cast(Sequence[Any], []))  # type: ignore[arg-type]
    assert gone == ["back"]
