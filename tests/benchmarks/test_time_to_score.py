"""The sides of a race take turns by their clocks, from the same policy, and are judged alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from benchmarks.racers import Judge, Side, TRLSettings, ours, prepared, trl
from benchmarks.time_to_score import Look, Record, Rules, facts, race, table
from benchmarks.workload import ReadAgain, pieces
from ragen_pl.models.base import LanguageModel
from ragen_pl.training.evaluation.results import EvalResult, summarize
from ragen_pl.types import EpisodeId, Request, Sampling
from tests.benchmarks.test_speed import MODEL
from tests.support.doubles import make_group
from tests.support.tiny_run import write_config


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test in a folder of its own; none may leave a temporary folder behind."""
    monkeypatch.chdir(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert list(temporary.glob("race-*")) == []


class Scripted(Side):
    """A side whose steps take a fixed time, and whose policy is its number of steps."""

    def __init__(self, name: str, seconds: float, log: list[str], length: int = 99) -> None:
        super().__init__(name, lambda: cast(LanguageModel, (name, self.taken)))
        self.each, self.taken, self.log, self.length = seconds, 0, log, length

        def loop() -> None:
            self.boundary()  # set-up
            for _ in range(self.length):
                self.taken += 1
                self.trajectories += 8
                self.boundary()

        self.train_with(loop, 1)

    def step(self) -> None:
        super().step()
        self.log.append(self.name)
        self.seconds = self.taken * self.each


def judge(policy: LanguageModel) -> EvalResult:
    """Let every step of a policy solve one more of ten rooms."""
    _, taken = cast(tuple[str, int], policy)
    return summarize([make_group([float(i < taken)], seed=i) for i in range(10)])


def test_sides_take_turns_by_their_clocks_until_they_have_won_or_run_out() -> None:
    log: list[str] = []
    sides = [Scripted("fast", 1.0, log), Scripted("slow", 2.0, log), Scripted("short", 1.5, log, 2)]
    rules = Rules(limit=7.5, every=2.0, targets=(0.3, 0.5))
    fast, slow, short = race(sides, judge, rules)
    assert log[:6] == ["fast", "slow", "short", "fast", "short", "fast"]
    assert [(look.seconds, look.success) for look in fast.looks] == [
        *((0, 0.0), (2, 0.2), (4, 0.4), (6, 0.6))
    ]
    assert [look.trajectories for look in fast.looks] == [0, 16, 32, 48]
    assert [look.seconds for look in slow.looks] == [0, 2, 4, 6, 8]  # out of time
    assert [look.success for look in short.looks][-1] == 0.2  # its loop has ended
    assert fast.reached(0.5) == fast.looks[3]
    assert slow.reached(0.5) is None
    shown = table([fast, slow, short], rules)
    assert "4 (32)" in shown
    assert "6 (48)" in shown
    assert "not reached" in shown
    plain = facts([slow], rules)[0]
    assert plain["reached"]["0.5"] is None
    assert plain["reached"]["0.3"]["seconds"] == 6


def test_a_score_is_reached_once() -> None:
    looks = [Look(t, t, 0, s, 0.0, 1.0) for t, s in ((0.0, 0.1), (5.0, 0.6), (10.0, 0.4))]
    assert Record("side", looks).reached(0.5) == looks[1]


def tiny(folder: Path, *more: str) -> Sequence[str]:
    """Return the options of a run of two iterations of RL."""
    length = ("--data.warm_start.iterations", "0", "--trainer.max_epochs", "2")
    return ("--config", str(write_config(folder)), *length, *more)


def test_ours_is_judged_before_and_after_its_iterations(tmp_path: Path) -> None:
    options = tiny(tmp_path)
    side, referee = ours("ours", options, 1), Judge(options, 1)
    side.steps.step()
    assert (side.trajectories, side.seconds) == (0, 0.0)
    before = {name: value.clone() for name, value in side.policy().model.state_dict().items()}
    start = referee(side.policy())
    assert start.count == 6
    assert start == referee(side.policy())
    side.step()
    side.step()
    assert (side.trajectories, side.steps.finished) == (16, False)
    assert side.seconds > 0
    assert side.core_seconds > 0
    after = side.policy().model.state_dict()
    assert any(not torch.equal(before[name], value) for name, value in after.items())
    side.step()
    assert side.steps.finished
    with pytest.raises(AssertionError, match="ended"):
        side.step()


def test_the_plain_loop_ends_a_completion_at_the_stop_token() -> None:
    language = MODEL.build(pieces(), 0)
    requests = [Request((5, 6, 7 + row), EpisodeId(0, row, 0), 0) for row in range(8)]
    torch.manual_seed(0)
    free = ReadAgain(language.model)(requests, Sampling(1.0, 12))
    assert {len(each.token_ids) for each in free} == {12}
    assert not any(each.stopped for each in free)
    stop = free[0].token_ids[3]
    torch.manual_seed(0)
    found = ReadAgain(language.model, stop)(requests, Sampling(1.0, 12))
    assert found[0].token_ids == free[0].token_ids[: free[0].token_ids.index(stop) + 1]
    for each in found:
        assert each.stopped == (stop in each.token_ids)
        assert stop not in each.token_ids[:-1]
        assert len(each.token_ids) == len(each.log_probs)


@pytest.mark.parametrize("engine", ["generate", "ours"])
def test_trl_begins_at_the_same_policy_and_trains_it(tmp_path: Path, engine: str) -> None:
    pytest.importorskip("trl")
    # So that the returns of babble differ.
    varied = "{class_path: Overlong, init_args: {buffer: 40, penalty: -1.0}}"
    given = ("--data.rollout.online_k", "2", "--data.rollout.rewards.overlong", varied)
    options: Any = tiny(tmp_path, *given)
    app = prepared(options, 1)
    folder = tmp_path / "start"
    language = app.model.trainable.build(app.model.vocabulary)
    language.model.save_pretrained(folder)
    language.tokenizer.save_pretrained(folder)
    options = (*options, "--model.policy.weights", str(folder))
    side = trl(TRLSettings(1e-2, engine=engine), options, 1)
    referee = Judge(options, 1)
    side.steps.step()
    assert referee(side.policy()) == referee(language)
    before = {name: value.clone() for name, value in side.policy().model.state_dict().items()}
    for collected in (16, 16, 32):
        side.step()
        assert side.trajectories == collected
    after = side.policy().model.state_dict()
    assert any(not torch.equal(before[name], value) for name, value in after.items())
