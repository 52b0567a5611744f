"""What the loggers average, over one rank and over two."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from callbacks import EntropyLogger, RolloutMetrics, entropy_logger
from callbacks.entropy_logger import repeated_ngrams
from ragen_pl.distributed.collectives import gather_objects as gather
from ragen_pl.rollout import rank_means
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import Completion, FormatFault, StopReason, Summary, TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory, make_turn

NOTHING = cast(Any, None)


def recorded(callback: RolloutCallback, groups: list[TrajectoryGroup]) -> dict[str, float]:
    callback.on_collection_end(NOTHING, NOTHING, groups)
    assert callback.on_rollout_end(NOTHING, NOTHING, groups) is None
    return dict(callback.recorded)


def two_trajectories() -> list[TrajectoryGroup]:
    good = make_trajectory(
        [
            make_turn(0.0, thought="go up now", entropies=(1.0, 0.0, 0.0), thought_correct=True),
            make_turn(10.0, thought="done", entropies=(0.2,), thought_correct=False),
        ],
        success=True,
        stop_reason=StopReason.TERMINATED,
    )
    bad = make_trajectory([make_turn(0.0, fault=FormatFault.NO_ANSWER, response="?")], member=1)
    return [TrajectoryGroup(0, 0, (good, bad))]


def test_what_the_memory_made_of_trajectories() -> None:
    completion = Completion((7,) * 5, (-0.5,) * 5, (0.5,) * 5, stopped=True)
    summary = Summary((4,), completion, "summary", "?", "")
    cut = replace(make_turn(), prompt_ids=(1,) * 10, begins_sequence=True, summary=summary)
    whole, divided = [make_turn(), make_turn()], [make_turn(), cut]
    rows = tuple(make_trajectory(turns, member=n) for n, turns in enumerate((whole, divided)))
    metrics = recorded(RolloutMetrics(), [TrajectoryGroup(0, 0, rows)])
    assert metrics["rollout/sequences_per_trajectory"] == 1.5
    # Prompts of 3 tokens and answers of 2: 10 tokens; 3 + 2 + 1 + 5, and 10 + 2.
    assert metrics["rollout/sequence_length"] == (10 + 11 + 12) / 3
    assert metrics["rollout/context_tokens"] == (3 + 8 + 3 + 10) / 4
    assert metrics["rollout/summary_length"] == 5
    assert metrics["rollout/sampled_tokens"] == 13
    assert "rollout/summary_length" not in recorded(RolloutMetrics(), two_trajectories())


def test_rollout_metrics() -> None:
    metrics = recorded(RolloutMetrics(), two_trajectories())
    assert metrics["rollout/success"] == 0.5
    assert metrics["rollout/pass_at_2"] == 1.0
    assert "rollout/pass_at_4" not in metrics
    assert metrics["rollout/return"] == pytest.approx(4.95)
    assert metrics["rollout/return/env"] == 5.0
    assert metrics["rollout/return/format"] == pytest.approx(-0.05)
    assert metrics["rollout/turns"] == 1.5
    assert metrics["rollout/actions"] == 1.0
    assert metrics["rollout/thought_accuracy"] == 0.5
    assert metrics["rollout/fault_no_answer"] == pytest.approx(1 / 3)
    assert metrics["rollout/fault_cut_off"] == 0
    assert metrics["rollout/stop_terminated"] == metrics["rollout/stop_max_turns"] == 0.5


def test_entropy_is_a_mean_over_tokens() -> None:
    metrics = recorded(EntropyLogger(), two_trajectories())
    assert metrics["rollout/entropy"] == pytest.approx((1.0 + 0.2 + 0.5 + 0.5) / 6)
    assert metrics["rollout/entropy_turn_2"] == pytest.approx(0.2)
    assert metrics["rollout/entropy_first_half"] == pytest.approx(0.75)
    assert metrics["rollout/response_length"] == 2.0
    assert metrics["rollout/thought_length"] == pytest.approx(4 / 3)
    assert metrics["rollout/valid_format"] == pytest.approx(2 / 3)
    assert metrics["rollout/distinct_responses"] == pytest.approx(2 / 3)


def test_lengths_and_distinct_thoughts_are_told_apart() -> None:
    metrics = recorded(EntropyLogger(), two_trajectories())
    assert metrics["rollout/thought_length_success"] == 2.0
    assert metrics["rollout/thought_length_failure"] == 0.0
    assert metrics["rollout/distinct_thoughts"] == 1.0  # the empty one is none
    assert metrics["rollout/distinct_responses_in_group"] == 1.0
    echo = make_trajectory([make_turn(thought="go up now"), make_turn(response="Left")], member=2)
    (group,) = two_trajectories()
    groups = [replace(group, trajectories=(*group.trajectories, echo)), make_group([0.0] * 4)]
    metrics = recorded(EntropyLogger(), groups)
    assert metrics["rollout/distinct_thoughts"] == pytest.approx(2 / 3)
    # First responses only: two different ones of three, and one of four.
    assert metrics["rollout/distinct_responses_in_group"] == pytest.approx((2 / 3 + 1 / 4) / 2)


def test_responses_with_an_equal_one_are_duplicates() -> None:
    """Of four first responses three are equal; elsewhere a second turn repeats the fourth."""
    said = ("Up", "Up", "Left", "Up")
    members = tuple(
        make_trajectory([make_turn(response=text)], member=n) for n, text in enumerate(said)
    )
    other = make_trajectory([make_turn(response="Down"), make_turn(response="Left")])
    groups = [TrajectoryGroup(0, 0, members), TrajectoryGroup(1, 1, (other,))]
    metrics = recorded(EntropyLogger(), groups)
    assert metrics["rollout/duplicate_responses_in_group"] == 3 / 4  # a lone member has no other
    assert metrics["rollout/duplicate_responses"] == pytest.approx(5 / 6)
    assert metrics["rollout/distinct_responses"] == pytest.approx(3 / 6)


def test_ngrams_that_occurred_before_are_repeated() -> None:
    assert repeated_ngrams([1, 2, 3, 4, 5]) == (0, 2)
    assert repeated_ngrams([1, 2] * 4) == (3, 5)  # 1212 and 2121 occur, then only repeat
    assert repeated_ngrams([1, 2, 3]) == (0, 0)


def test_broken_trajectories_count_only_as_stops() -> None:
    metrics = recorded(RolloutMetrics(), [make_group([1.0, 0.0], broken=[1])])
    assert metrics["rollout/success"] == 1.0
    assert metrics["rollout/stop_env_error"] == 0.5


def test_nothing_to_judge_is_not_logged() -> None:
    assert "rollout/thought_accuracy" not in recorded(RolloutMetrics(), [make_group([1.0])])


def by_difficulty(names: str, *, weight: float = 1.0) -> TrajectoryGroup:
    """Make a group; capitals succeed."""
    members = tuple(
        make_trajectory([make_turn()], member=n, difficulty=name.lower(), success=name.isupper())
        for n, name in enumerate(names)
    )
    return TrajectoryGroup(0, 0, members, weight=weight)


def test_success_and_shares_by_difficulty() -> None:
    nameless = make_group([0.0, 1.0], broken=[1])
    metrics = recorded(RolloutMetrics(), [by_difficulty("AAa"), by_difficulty("Bbbb"), nameless])
    assert metrics["rollout/success_at/a"] == pytest.approx(2 / 3)
    assert metrics["rollout/success_at/b"] == 1 / 4
    assert (metrics["rollout/share/a"], metrics["rollout/share/b"]) == (3 / 8, 4 / 8)
    assert not any(name.endswith("/") for name in metrics)


def test_difficulties_without_number_are_left_out() -> None:
    names = [chr(ord("a") + n) for n in range(21)]
    few = recorded(RolloutMetrics(), [by_difficulty(name) for name in names[:20]])
    assert few["rollout/share/t"] == 1 / 20
    many = recorded(RolloutMetrics(), [by_difficulty(name) for name in names])
    assert not any("/share/" in name or "/success_at/" in name for name in many)


def test_a_curriculum_tells_what_it_goes_by() -> None:
    groups = [by_difficulty("AA", weight=0.5), by_difficulty("bb", weight=1.5)]
    assert "rollout/success_uniform" not in recorded(RolloutMetrics(), groups)
    callback = RolloutMetrics()
    starts = SimpleNamespace(chooses_starts=True, running_success={"a": 0.75})
    data = SimpleNamespace(starts=starts, rollout=RolloutConfig())
    trainer = cast(Any, SimpleNamespace(datamodule=data))
    callback.on_collection_end(trainer, NOTHING, groups)
    callback.on_rollout_end(trainer, NOTHING, groups)
    assert callback.recorded["rollout/success"] == 0.5
    assert callback.recorded["rollout/success_uniform"] == 0.25
    assert callback.recorded["rollout/running_success/a"] == 0.75


def test_ranks_are_averaged_by_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_means, "gather_objects", lambda value: gather(value) * 2)
    monkeypatch.setattr(entropy_logger, "gather_objects", lambda value: gather(value) * 2)
    assert recorded(RolloutMetrics(), two_trajectories())["rollout/success"] == 0.5
    assert recorded(EntropyLogger(), two_trajectories())["rollout/distinct_responses"] == 1 / 3
