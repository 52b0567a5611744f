"""The layout of batches: masks, turn ends and rewards, by invariants and by example."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.rollout.packing import (
    member_of,
    pack,
    token_batch,
    token_rows,
    trajectory_id,
)
from ragen_pl.types import Completion, FormatFault, StopReason, Summary, TokenRow, Trajectory, Turn
from tests.support import toy_worlds as worlds


def turn(prompt: tuple[int, ...], sampled: tuple[int, ...], reward: float) -> Turn:
    completion = Completion(sampled, tuple(-0.1 * t for t in sampled), (0.5,) * len(sampled), True)
    return Turn(
        prompt_ids=prompt,
        completion=completion,
        observation="",
        message="",
        anchor_key="",
        state=None,
        response="",
        thought="",
        thought_tokens=0,
        actions=(),
        reached_keys=(),
        rewards={"env": reward, "format": -0.1},
        thought_reward=0.0,
        format_fault=FormatFault.NO_ANSWER,
        thought_correct=None,
        thought_grounding=None,
    )


def trajectory(turns: list[Turn], member: int = 0) -> Trajectory:
    return Trajectory(
        group_id=4,
        member=member,
        seed=0,
        env_name="test",
        difficulty="",
        turns=tuple(turns),
        initial_state={},
        start_key="",
        final_state={},
        stop_reason=StopReason.MAX_TURNS,
        success=False,
    )


tokens = st.lists(st.integers(1, 99), min_size=1, max_size=5).map(tuple)
trajectories = st.lists(
    st.lists(st.builds(turn, tokens, tokens, st.floats(-5, 5)), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
).map(lambda rows: [trajectory(row, member) for member, row in enumerate(rows)])


@given(trajectories)
def test_turns_concatenate_and_masks_nest(rows: list[Trajectory]) -> None:
    batch = pack(rows, weights=[1.0] * len(rows))
    assert bool((batch.turn_ends <= batch.loss_mask).all())
    assert bool((batch.loss_mask <= batch.attention_mask).all())
    assert bool((batch.rewards[~batch.turn_ends] == 0).all())
    assert bool((batch.sampled_log_probs[~batch.loss_mask] == 0).all())
    for row, t in enumerate(rows):
        whole = [i for u in t.turns for i in (*u.prompt_ids, *u.completion.token_ids)]
        assert batch.input_ids[row][batch.attention_mask[row]].tolist() == whole
        assert list(t.token_ids) == whole
        sampled = [i for u in t.turns for i in u.completion.token_ids]
        assert batch.loss_mask[row][batch.attention_mask[row]].tolist() == list(t.loss_mask)
        assert batch.input_ids[row][batch.loss_mask[row]].tolist() == sampled
        assert int(batch.turn_ends[row].sum()) == len(t.turns)
        assert batch.rewards[row].sum().item() == pytest.approx(t.total_reward, abs=1e-4)


def test_layout_by_example() -> None:
    batch = pack([trajectory([turn((7, 8), (1, 2, 3), 1.0), turn((9,), (4,), 2.0)])], weights=[0.5])
    assert batch.input_ids.tolist() == [[7, 8, 1, 2, 3, 9, 4]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 1, 0, 1]]
    assert batch.turn_ends.int().tolist() == [[0, 0, 0, 0, 1, 0, 1]]
    assert batch.turn_index.tolist() == [[0, 0, 0, 0, 0, 1, 1]]
    assert batch.rewards[0, [4, 6]].tolist() == pytest.approx([0.9, 1.9])
    assert batch.policy_weights.tolist() == [0.5]


def test_values_are_packed_where_every_completion_has_them() -> None:
    turns = [turn((7, 8), (1, 2), 1.0), turn((9,), (4,), 2.0)]
    values = [(0.25, -0.5), (2.0,)]
    valued = [
        replace(each, completion=replace(each.completion, values=of_turn))
        for each, of_turn in zip(turns, values, strict=True)
    ]
    packed = pack([trajectory(valued), trajectory(valued[1:], member=1)], weights=[1.0, 1.0])
    assert packed.sampled_values is not None
    assert packed.sampled_values.tolist() == [[0, 0, 0.25, -0.5, 0, 2], [0, 2, 0, 0, 0, 0]]
    one_without = [trajectory(valued), trajectory([turns[1]], member=1)]
    assert pack(one_without, weights=[1.0, 1.0]).sampled_values is None


def test_turns_that_are_not_learned_and_given_tokens_are_context() -> None:
    turns = [turn((7,), (1, 2), 1.0), turn((9,), (3, 4, 5), 2.0)]
    (row,) = token_rows(turns, [False, True], given=[0, 2])
    assert row == TokenRow((7, 1, 2, 9, 3, 4, 5), (False,) * 6 + (True,))


def test_summaries_are_always_learned_at_the_end_of_their_row() -> None:
    before, after = turn((7,), (1, 2), 1.0), turn((5, 9), (4,), 2.0)
    summary = Summary((8,), Completion((6,), (-0.1,), None, True), "", request="", text="")
    turns = [before, replace(after, summary=summary, begins_sequence=True)]
    rows = token_rows(turns, [False, True])
    assert [row.token_ids for row in rows] == [(7, 1, 2, 8, 6), (5, 9, 4)]
    assert [row.loss_mask.index(True) for row in rows] == [4, 2]
    batch = token_batch(rows)
    assert batch.input_ids.tolist() == [[7, 1, 2, 8, 6], [5, 9, 4, 0, 0]]
    assert batch.loss_mask.nonzero().tolist() == [[0, 4], [1, 2]]
    assert batch.lengths.tolist() == [5, 3]


@given(trajectories)
def test_learned_rows_are_those_of_a_rollout(rows: list[Trajectory]) -> None:
    learned = [row for t in rows for row in token_rows(t.turns, [True] * len(t.turns))]
    rollout, batch = pack(rows, weights=[1.0] * len(rows)), token_batch(learned)
    for name in ("input_ids", "attention_mask", "loss_mask"):
        assert torch.equal(getattr(batch, name), getattr(rollout, name))


def test_ids_tell_members() -> None:
    member = trajectory([turn((7,), (1,), 1.0)], member=3)
    assert member_of(trajectory_id(member)) == 3
    assert pack([member], weights=[1.0]).trajectory_ids.tolist() == [trajectory_id(member)]


def test_equal_states_have_equal_ids_and_success_is_kept() -> None:
    turns = [turn((7, 8), (1,), 1.0), turn((9,), (4,), 2.0), turn((9,), (4,), 2.0)]
    hashes = ("deadbeef", "a state", "deadbeef")
    seen = [replace(t, anchor_key=h) for t, h in zip(turns, hashes, strict=True)]
    won = replace(trajectory(seen), success=True)
    batch = pack([won, trajectory([seen[1]], member=1)], weights=[1.0, 1.0])
    first, second = int(batch.state_ids[0, 0]), int(batch.state_ids[0, 3])
    assert first != second
    assert batch.state_ids[0].tolist() == [first] * 3 + [second] * 2 + [first] * 2
    assert batch.state_ids[1, :2].tolist() == [second] * 2
    assert batch.successes.tolist() == [True, False]


def test_nothing_is_packed_into_no_rows() -> None:
    """A rank's environments may all have raised: its columns are of the others' types."""
    nothing, something = pack([], weights=[]), worlds.collection(seed=0)
    assert len(nothing) == 0
    for field in fields(nothing):
        ours, theirs = getattr(nothing, field.name), getattr(something, field.name)
        if field.name == "sampled_values":  # no completion lacks values
            assert ours.shape == nothing.loss_mask.shape
        elif not isinstance(ours, torch.Tensor):
            assert ours == theirs, field.name
        else:
            assert ours.ndim == theirs.ndim
            if field.name != "rewards":  # made up in float64
                assert ours.dtype == theirs.dtype, field.name


def test_thoughts_and_their_rewards_have_columns_of_their_own() -> None:
    judged = replace(
        turn((7, 8), (1, 2, 3), 1.0),
        thought_tokens=2,
        rewards={"env": 1.0, "format": -0.1, "truth": -0.5},
        thought_reward=-0.5,
    )
    batch = pack([trajectory([judged, turn((9,), (4,), 2.0)])], weights=[1.0])
    assert batch.thought_mask.int().tolist() == [[0, 0, 1, 1, 0, 0, 0]]
    assert batch.rewards[0, [4, 6]].tolist() == pytest.approx([0.4, 1.9])
    assert batch.outcome_rewards[0, [4, 6]].tolist() == pytest.approx([0.9, 1.9])
    assert batch.thought_rewards[0, [4, 6]].tolist() == pytest.approx([-0.5, 0.0])
    for column in (batch.outcome_rewards, batch.thought_rewards):
        assert not bool(column[~batch.turn_ends].any())
