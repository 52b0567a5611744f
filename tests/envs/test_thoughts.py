"""Graded thoughts: hand-counted shares, and properties over rooms, lakes and hostile texts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.sokoban.env import Sokoban, Thought
from ragen_pl.envs.sokoban.search import Board, move, plan_progress, shortest_plan
from ragen_pl.envs.thoughts import compare
from tests.envs.test_sokoban import CORNER, ONE_PUSH, room

STYLES: tuple[Thought, ...] = ("plan", "facts_and_plan", "facts_plan_and_prediction")
FACTS = "P(1,2) X(1,3) O(1,4)"


def test_words_are_compared_place_by_place() -> None:
    assert compare(["a", "b"], ["a", "b"]) == (2, 2)
    assert compare(["a"], ["a", "b"]) == (1, 2)
    assert compare(["a", "x", "y"], ["a"]) == (1, 3)
    assert compare([], []) == (0, 0)


@pytest.mark.parametrize(
    ("thought", "true", "stated"),
    [
        (f"{FACTS} Right", 4, 4),
        (f"{FACTS} Left Right Right", 4, 4),
        (f"{FACTS} Up", 3, 4),
        (FACTS, 3, 4),
        (f"{FACTS} Right Right", 3.5, 4),
        ("P(1,1) X(1,3) O(1,4) Right", 3, 4),
        ("P(1,2) X(1,3) Right", 3, 4),
        (f"{FACTS} X(1,1) Right", 4, 5),
        ("Right", 1, 4),
        (f"{FACTS} stuck", 3, 4),
        ("P(1,2)  X(1,3) O(1,4) Right", 2, 5),
        ("", 0, 4),
    ],
)
def test_statements_of_a_room(thought: str, true: float, stated: int) -> None:
    found = room(ONE_PUSH).thought_grounding(thought, ("Right",))
    assert found == pytest.approx(true / stated)


@pytest.mark.parametrize(
    ("prediction", "true"),
    [
        (" then P(1,3) X(1,4)", 2),
        (" then P(1,2) X(1,4)", 1),
        (" then P(1,2) X(1,3)", 0),
        (" then", 0),
        ("", 0),
    ],
)
def test_predictions_are_judged_by_the_actions_taken(prediction: str, true: int) -> None:
    env = room(ONE_PUSH, thought="facts_plan_and_prediction")
    thought = f"{FACTS} Right{prediction}"
    assert env.thought_grounding(thought, ("Right",)) == pytest.approx((4 + true) / 6)
    assert env.thought_correct(thought) is (true == 2)
    if true == 0 and prediction.endswith(")"):  # nothing moves where nothing is done
        assert env.thought_grounding(thought, ()) == 1.0


def test_a_prediction_says_where_the_turn_leads() -> None:
    env = room(ONE_PUSH, thought="facts_plan_and_prediction")
    assert env.expert_turn(random.Random(0), 3)[0] == f"{FACTS} Right then P(1,3) X(1,4)"
    assert env.thought_correct(f"{FACTS} Left Right Right then P(1,1) X(1,3)")
    assert env.thought_correct(f"{FACTS} Left Right Right then P(1,2) X(1,3)")
    assert not env.thought_correct(f"{FACTS} Left Right Right then P(2,2) X(1,3)")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("num_boxes", [1, 2])
def test_the_expert_is_wholly_right_in_every_state(style: Thought, num_boxes: int) -> None:
    env = Sokoban(size=6 + 2 * (num_boxes - 1), num_boxes=num_boxes, thought=style)
    rng = random.Random(0)
    pieces = set(env.vocabulary())
    for seed in range(6):
        env.reset(seed=seed)
        ended = False
        while not ended:
            thought, actions = env.expert_turn(rng, 2)
            assert env.thought_correct(thought)
            assert env.thought_grounding(thought, actions) == 1.0
            first, *others = thought.split(" ")
            assert {first, *(f" {word}" for word in others)} <= pieces
            for action in (*actions, rng.choice(env.actions)):
                ended = ended or any(env.step(action)[2:4])
                if ended:
                    break


@given(st.sampled_from(STYLES), st.integers(0, 30), st.data())
def test_a_room_is_graded_one_just_where_the_thought_is_correct(
    style: Thought, seed: int, data: st.DataObject
) -> None:
    env = Sokoban(thought=style)
    env.reset(seed=seed)
    thought, actions = env.expert_turn(random.Random(0), 3)
    words = thought.split(" ")
    other = st.sampled_from([*env.actions, "stuck", "then", "P(1,1)", "X(2,2)", "", "x"])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(words)))
        words[place : place + data.draw(st.integers(0, 1))] = data.draw(st.lists(other, max_size=2))
    changed = " ".join(words)
    found = env.thought_grounding(changed, actions)
    assert 0.0 <= found <= 1.0
    if style != "facts_plan_and_prediction":
        assert (found == 1.0) == env.thought_correct(changed)


@given(st.integers(0, 30), st.data())
def test_a_lake_is_graded_one_just_where_the_thought_is_correct(
    seed: int, data: st.DataObject
) -> None:
    env = FrozenLake()
    env.reset(seed=seed)
    thought, actions = env.expert_turn(random.Random(0), 3)
    words = thought.split(" ")
    other = st.sampled_from([*env.actions, "stuck", "P(1,1)", "", "x"])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(words)))
        words[place : place + data.draw(st.integers(0, 1))] = data.draw(st.lists(other, max_size=2))
    changed = " ".join(words)
    found = env.thought_grounding(changed, actions)
    assert 0.0 <= found <= 1.0
    assert (found == 1.0) == env.thought_correct(changed)


@given(st.text(max_size=60), st.sampled_from(STYLES))
def test_hostile_thoughts_are_graded_and_never_wholly_right(text: str, style: Thought) -> None:
    for env in (Sokoban(thought=style), FrozenLake()):
        env.reset(seed=3)
        assert 0.0 <= env.thought_grounding(text, env.actions[:1]) < 1.0


def progress_by_hand(board: Board, start: tuple[int, int], plan: Sequence[str]) -> float:
    """Follow a plan move by move, with a search after each."""
    whole, best, position = shortest_plan(board, *start), None, start
    assert whole is not None
    best = len(whole)
    for number, name in enumerate(plan):
        if position[1] == board.targets:
            return number / len(plan)
        position = move(board, position, ("Up", "Down", "Left", "Right").index(name))
        rest = shortest_plan(board, *position)
        if rest is None:
            break
        best = len(rest)
    return max(0.0, 1 - best / len(whole))


@given(st.integers(0, 200), st.lists(st.sampled_from(Sokoban.actions), max_size=8))
def test_a_plan_is_graded_up_to_the_move_that_spoils_the_room(seed: int, plan: list[str]) -> None:
    env = Sokoban()
    env.reset(seed=seed)
    start = (env._player, env._boxes)
    expected = progress_by_hand(env._board, start, plan)
    assert plan_progress(env._board, start, plan) == pytest.approx(expected)


def test_stuck_is_a_statement_too() -> None:
    env = room(CORNER, thought="plan")
    assert env.thought_grounding("stuck", ()) == 1.0
    assert env.thought_grounding("Up", ()) == 0.0
    assert room(ONE_PUSH, thought="plan").thought_grounding("stuck", ()) == 0.0
