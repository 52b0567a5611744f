"""Which trajectories of a run are kept, with what, and that keeping them never ends a run."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from callbacks import EchoTrapDetector, Results, TrajectoryWriter, VarianceFilter, trajectory_writer
from callbacks.trajectory_writer import GroupFacts, choose_groups
from ragen_pl.ops.echo_trap.assess import Assessment, Level
from ragen_pl.report.trajectory_files import read_records
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.packing import pack
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.types import Evaluation, Selection, TrainingBatch, TrajectoryGroup
from tests.report.test_trajectory_record import VALIDATOR
from tests.support.doubles import Stop, make_group, make_trainer
from tests.support.ranks import on_ranks
from tests.support.toy_env import PROMPTS, Stairs, make_learner

NO_TRAINER = cast(Any, None)


class Watch(RolloutCallback):
    """Keep the batches that were trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: dict[int, TrainingBatch] = {}

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        self.batches[self.iteration + 1] = batch


def fit(folder: Path, *callbacks: Callback, epochs: int = 3, **more: Any) -> Path:
    """Train on the stairs after one iteration of warm start; return the folder of trajectories."""
    data = RolloutDataModule(
        Stairs(),
        {"default": Stairs(), "other one": Stairs()},
        prompts=PROMPTS,
        rollout=RolloutConfig(
            num_groups=3,
            group_size=4,
            online_k=2,
            max_actions_per_turn=1,
            max_response_tokens=10,
            max_context=256,
        ),
        warm_start=WarmStart(1, updates_per_iteration=40, demonstrations=16, batch_size=8),
        evaluation=EvaluationConfig(size=2),
    )
    trainer = make_trainer(folder, epochs, callbacks, **more)
    trainer.fit(make_learner(), datamodule=data, ckpt_path=more.get("ckpt_path"))
    return folder / "trajectories"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_keeps_every_evaluation_and_some_groups(tmp_path: Path) -> None:
    watch, detector = Watch(), EchoTrapDetector()
    callbacks = (
        TrajectoryWriter(2, groups=4),
        VarianceFilter(0.5),
        detector,
        watch,
        Results((0.5,)),
    )
    folder = fit(tmp_path, *callbacks)
    sets = ("default", "other%20one")
    assert set(names(folder)) == {
        "rollout-00002.jsonl",
        *(
            f"{who}-{name}.jsonl"
            for who in ("random", "expert")
            for name in ("default", "other one")
        ),
        *(
            f"{who}-{name}-T0.5.jsonl"
            for who in ("untrained", "warm-started", "final")
            for name in ("default", "other one")
        ),
        *(
            f"validation-{n:05d}-{name}.jsonl"
            for n in (1, 2, 3)
            for name in ("default", "other one")
        ),
    }, sets
    for path in folder.iterdir():
        for record in read_records(path):
            VALIDATOR.validate(record)
    records = list(read_records(folder / "rollout-00002.jsonl"))
    _check_estimates(records, watch.batches[2])
    assert {record["alarm"]["level"] for record in records} == {"green"}
    kept = {record["group"]: record["selection"] for record in records}
    assert [each["chosen_as"] for each in kept.values()].count("best return") == 1
    for selection in kept.values():
        assert selection["reason"].startswith("kept: " if selection["weight"] else "dropped: ")
    validation = list(read_records(folder / "validation-00003-other one.jsonl"))
    assert {record["eval_set"] for record in validation} == {"other one"}
    assert {record["iteration"] for record in validation} == {3}
    untrained = next(iter(read_records(folder / "untrained-default-T0.5.jsonl")))
    assert (untrained["policy"], untrained["iteration"]) == ("untrained", 0)


def _check_estimates(records: list[dict[str, Any]], batch: TrainingBatch) -> None:
    """Compare with the batch itself, row by row."""
    groups = sorted({record["group"] for record in records})
    assert len(groups) == 4
    assert len(records) == 4 * 4
    rows = {
        (int(group), int(id) % 4096): row
        for row, (group, id) in enumerate(
            zip(batch.rollout.group_ids, batch.rollout.trajectory_ids, strict=True)
        )
    }
    trained = 0
    for record in records:
        row = rows[record["group"], record["member"]]
        mask, weight = batch.rollout.loss_mask[row], float(batch.rollout.policy_weights[row])
        assert record["selection"]["weight"] == weight
        tokens = [turn["tokens"] for turn in record["turns"]]
        if not weight:
            assert all(each["advantages"] is each["log_prob_gaps"] is None for each in tokens)
            continue
        trained += 1
        gaps = batch.old_log_probs - batch.rollout.sampled_log_probs
        for name, values in (("advantages", batch.advantages), ("log_prob_gaps", gaps)):
            found = torch.tensor([value for each in tokens for value in each[name]])
            torch.testing.assert_close(found, values[row][mask], atol=1e-5, rtol=1e-4)
    assert trained


def test_a_rollout_that_is_discarded_is_kept_without_advantages(tmp_path: Path) -> None:
    folder = fit(tmp_path, TrajectoryWriter(1, evaluations=False), Stop(2), epochs=5)
    assert names(folder) == ["rollout-00002.jsonl", "rollout-00003.jsonl"]
    for name, known in (("rollout-00002.jsonl", True), ("rollout-00003.jsonl", False)):
        tokens = [t["tokens"] for r in read_records(folder / name) for t in r["turns"]]
        assert tokens
        assert all((each["advantages"] is not None) == known for each in tokens)
        selected = [record["selection"] for record in read_records(folder / name)]
        assert any(each["weight"] for each in selected) == known
        assert all(each["reason"].startswith("discarded") != known for each in selected)


def test_a_disk_that_is_full_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    watch = Watch()
    folder = fit(tmp_path, TrajectoryWriter(1), watch)
    assert names(folder) == []
    assert sorted(watch.batches) == [2, 3]
    told = capsys.readouterr().out
    assert told.count("cannot be changed") == 1
    assert "No space left on device" in told


def test_a_limit_is_told_once_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fit(tmp_path, TrajectoryWriter(1, max_mb=1e-4), epochs=4)
    assert capsys.readouterr().out.count("trajectories.max_mb 0.0001") == 1
    assert names(folder) == [
        "rollout-00004.jsonl",
        "validation-00004-default.jsonl",
        "validation-00004-other one.jsonl",
    ]


def test_the_same_run_twice_in_one_folder_leaves_the_same_files(tmp_path: Path) -> None:
    def content(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    folder = fit(tmp_path, TrajectoryWriter(1))
    once = content(folder)
    abandoned = folder / "rollout-00009.jsonl"
    abandoned.write_bytes(once["rollout-00002.jsonl"])
    fit(tmp_path, TrajectoryWriter(1))
    assert content(folder) == once


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"every_n_iterations": -1}, "every_n_iterations is -1"),
        ({"groups": 0}, "groups is 0"),
        ({"max_mb": 0.0}, "max_mb is 0.0"),
        ({"max_mb": float("nan")}, "max_mb is nan"),
    ],
)
def test_wrong_keys_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrajectoryWriter(**keys)


# --- the choice of groups -------------------------------------------------------------------------

FACTS = st.lists(
    st.builds(
        GroupFacts,
        group_id=st.integers(0, 10**6),
        mean_return=st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
        spread=st.sampled_from([0.0, 1.0, 3.0]),
        is_kept=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda each: each.group_id,
)


@given(FACTS, st.one_of(st.none(), st.integers(1, 14)), st.randoms())
def test_the_choice_has_its_size_and_does_not_depend_on_the_order(
    facts: list[GroupFacts], count: int | None, random: Any
) -> None:
    chosen = choose_groups(facts, count)
    assert len(chosen) == (len(facts) if count is None else min(count, len(facts)))
    assert chosen.keys() <= {each.group_id for each in facts}
    shuffled = list(facts)
    random.shuffle(shuffled)
    assert choose_groups(shuffled, count) == chosen
    known = {each.group_id: each for each in facts}
    for group, role in chosen.items():
        if role == "best return":
            assert known[group].mean_return == max(each.mean_return for each in facts)
        if role == "dropped":
            assert not known[group].is_kept
    if count is not None and count >= 4 and any(not each.is_kept for each in facts):
        assert any(not known[group].is_kept for group in chosen)


def test_the_choice_shows_the_range() -> None:
    facts = [GroupFacts(n, float(n), 5.0 if n == 4 else 1.0, n not in (6, 7)) for n in range(10)]
    assert choose_groups(facts, 4) == {
        9: "best return",
        0: "worst return",
        4: "largest spread",
        6: "dropped",
    }
    assert choose_groups(facts, 2) == {9: "best return", 0: "worst return"}
    assert choose_groups(facts, 6).keys() == {9, 0, 4, 6, 8, 3}


def played(folder: Path, rank: int = 0) -> Any:
    """Return a trainer that runs the hooks of a rank."""
    env = Stairs()
    chat = SimpleNamespace(
        opening_tag="<think>", token_text=lambda _: "", decode=lambda _: "", prompts=PROMPTS
    )
    data = SimpleNamespace(
        env=env,
        dialogues=SimpleNamespace(chat=lambda _: chat, evaluation_dialogue=lambda *_: chat),
        eval_sets={"a": env},
        rollout=SimpleNamespace(temperature=1.0),
    )
    return SimpleNamespace(
        datamodule=data,
        lightning_module=MODULE,
        callbacks=[],
        default_root_dir=str(folder),
        is_global_zero=rank == 0,
        should_stop=False,
        state=SimpleNamespace(fn=TrainerFn.FITTING),
    )


MODULE = cast(Any, SimpleNamespace(optimization=SimpleNamespace(old_log_probs="recomputed")))


def make_batch(
    groups: list[TrajectoryGroup], weights: tuple[tuple[float, ...], ...]
) -> TrainingBatch:
    """Make a batch whose advantages are the trajectories' ids."""
    members = [trajectory for group in groups for trajectory in group.trajectories]
    rollout = pack(members, weights=[weight for row in weights for weight in row])
    ids = rollout.trajectory_ids[:, None] * rollout.loss_mask
    zeros = torch.zeros_like(rollout.rewards)
    return TrainingBatch(rollout, rollout.sampled_log_probs + 0.25, zeros, ids.float(), zeros)


@pytest.mark.parametrize("is_sampled", [False, True])
def test_gaps_are_known_where_the_trainer_computed_log_probs(
    tmp_path: Path, is_sampled: bool
) -> None:
    writer, trainer, groups = TrajectoryWriter(1), played(tmp_path, 0), [make_group([0.0, 1.0])]
    weights = ((1.0, 1.0),)
    batch = replace(make_batch(groups, weights), old_is_sampled=is_sampled)
    writer.on_selection(trainer, NO_TRAINER, groups, Selection(weights, ("kept",)))
    writer.on_training_batch(trainer, MODULE, batch)
    for record in read_records(tmp_path / "trajectories" / "rollout-00001.jsonl"):
        (tokens,) = (turn["tokens"] for turn in record["turns"])
        assert tokens["log_prob_gaps"] == (None if is_sampled else [0.25] * 2)


def test_ranks_write_together_what_one_writes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = ([0.0, 1.0], [5.0, 5.0], [0.0, 9.0], [-1.0, -1.0], [2.0, 2.5], [0.1, 0.2])
    groups = [make_group(row, group_id=n) for n, row in enumerate(returns)]
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()

    def write(own: list[TrajectoryGroup], folder: Path, rank: int = 0) -> None:
        writer, trainer = TrajectoryWriter(1, groups=3), played(folder, rank)
        weights = tuple((0.0 if group.group_id == 2 else 1.0,) * 2 for group in own)
        reasons = tuple(f"because {group.group_id}" for group in own)
        writer.on_selection(trainer, NO_TRAINER, own, Selection(weights, reasons))
        writer.on_training_batch(trainer, MODULE, make_batch(own, weights))
        shared = own + ([] if groups[0] in own else [groups[0]])  # played by both ranks
        evaluation = Evaluation("a", None, tuple(shared))
        writer.on_evaluation_end(trainer, NO_TRAINER, "expert", evaluation, None)

    write(groups, tmp_path / "alone")
    on_ranks(
        2,
        lambda rank: write(groups[1 - rank :: 2], tmp_path / "together", rank),
        monkeypatch,
        trajectory_writer,
    )
    rollout = list(read_records(tmp_path / "together" / "trajectories" / "rollout-00001.jsonl"))
    for record in rollout:
        (tokens,) = (turn["tokens"] for turn in record["turns"])
        dropped, number = record["group"] == 2, record["group"] * 4096 + record["member"]
        assert tokens["advantages"] == (None if dropped else [float(number)] * 2)
        assert tokens["log_prob_gaps"] == (None if dropped else [0.25] * 2)
    assert {(each["group"], each["selection"]["reason"]) for each in rollout} == {
        (group, f"because {group}") for group in (1, 2, 3)
    }
    for name in ("rollout-00001.jsonl", "expert-a.jsonl"):
        one, two = (
            (tmp_path / how / "trajectories" / name).read_text() for how in ("alone", "together")
        )
        assert one == two
    records = [json.loads(each) for each in one.splitlines()]
    assert [(each["group"], each["member"]) for each in records] == [
        (group, member) for group in range(6) for member in range(2)
    ]


def test_the_alarm_of_the_rollout_is_recorded(tmp_path: Path) -> None:
    detector = EchoTrapDetector()
    detector._histories = {"": [cast(Any, None)]}
    detector.assessed = Assessment(Level.AMBER, "a and b", {}, signs=("a", "b"))
    trainer, writer = played(tmp_path), TrajectoryWriter(1)
    trainer.callbacks = [detector]
    group = make_group([1.0, 2.0])
    writer.on_selection(trainer, NO_TRAINER, [group], Selection(((1.0, 1.0),)))
    detector.assessed = Assessment(Level.GREEN, "", {})
    writer._write_rollout(trainer, cast(Any, writer._pending), {})
    (record, _) = read_records(tmp_path / "trajectories" / "rollout-00001.jsonl")
    assert record["alarm"] == {"level": "amber", "signs": ["a", "b"]}
    assert record["selection"]["reason"] == ""
