"""Rewards, search, expert and judged thoughts in Sokoban."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.sokoban.env import Sokoban, Thought
from ragen_pl.envs.sokoban.rooms import sample_room
from ragen_pl.envs.sokoban.search import ACTIONS, move, shortest_plan, starts_by_length


def room(text: str, max_actions: int = 10, thought: Thought = "facts_and_plan") -> Sokoban:
    """Set up a room from its grid in the paper's symbols."""
    rows = text.split()
    marks = "".join(rows)
    boxes = [cell for cell, mark in enumerate(marks) if mark in "X√"]
    env = Sokoban(size=len(rows), num_boxes=len(boxes), max_actions=max_actions, thought=thought)
    env.set_state(
        {
            "size": len(rows),
            "walls": [cell for cell, mark in enumerate(marks) if mark == "#"],
            "targets": [cell for cell, mark in enumerate(marks) if mark in "O√S"],
            "boxes": boxes,
            "player": next(cell for cell, mark in enumerate(marks) if mark in "PS"),
            "num_actions": 0,
        }
    )
    assert env.render_text() == "\n".join(rows)
    return env


ONE_PUSH = "###### #_PXO# #____# #____# #____# ######"
CORNER = "###### #X___# #_P__# #__O_# #____# ######"


def test_one_push_earns_ten_point_nine() -> None:
    env = room(ONE_PUSH)
    observation, reward, terminated, truncated, info = env.step("Right")
    assert reward == pytest.approx(10.9)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert observation.split()[1] == "#__P√#"


def test_blocked_actions_cost_and_count() -> None:
    env = room("######## #______# #_X____# #_√____# #_P____# #___O__# #______# ########")
    for action in ("Left", "Left", "Right", "Up"):  # the wall; the box behind the box
        before = env.render_text()
        after, reward, terminated, _, info = env.step(action)
        assert reward == pytest.approx(-0.1)
        assert not terminated
        assert info["moved"] == (before != after)
    assert not info["moved"]
    assert env.get_state()["num_actions"] == 4


def test_pushing_off_a_target_costs_one_and_on_earns_one() -> None:
    env = room("######## #______# #______# #P√____# #______# #___O_X# #______# ########")
    off = env.step("Right")
    assert off[1] == pytest.approx(-1.1)
    assert off[0].split()[3] == "#_SX___#"
    for action in ("Up", "Right", "Right", "Down"):
        assert env.step(action)[1] == pytest.approx(-0.1)
    _, reward, terminated, _, info = env.step("Left")
    assert reward == pytest.approx(0.9)
    assert not terminated
    assert not info["success"]


def test_actions_run_out() -> None:
    env = room(CORNER, max_actions=2)
    assert env.step("Left")[2:4] == (False, False)
    assert env.step("Left")[2:4] == (False, True)


def test_shortest_plans_are_shortest() -> None:
    """Compare with trying out every sequence of up to six actions."""
    for seed in (0, 1, 2, 4, 6, 8, 11, 13):
        found = sample_room(seed, 6, 1, "train")
        if found.optimal_length > 6:
            continue
        lengths = []
        for length in range(1, 7):
            for actions in product(range(4), repeat=length):
                position = (found.player, found.boxes)
                for action in actions:
                    position = move(found.board, position, action)
                if position[1] == found.board.targets:
                    lengths.append(length)
                    break
            if lengths:
                break
        plan = shortest_plan(found.board, found.player, found.boxes)
        assert plan is not None
        assert lengths == [len(plan)] == [found.optimal_length]


@pytest.mark.parametrize(("size", "num_boxes"), [(6, 1), (8, 2)])
def test_backward_search_agrees_with_forward_search(size: int, num_boxes: int) -> None:
    rng = random.Random(0)
    for seed in range(5):
        board = sample_room(seed, size, num_boxes, "train").board
        for length, layer in enumerate(starts_by_length(board, 12)):
            for player, boxes in rng.sample(layer, min(len(layer), 5)):
                plan = shortest_plan(board, player, boxes)
                assert plan is not None
                assert len(plan) == length


@pytest.mark.parametrize("env", [Sokoban(), Sokoban(size=8, num_boxes=2)], ids=["6x6", "8x8"])
def test_expert_solves_in_the_optimal_number_of_moves(env: Sokoban) -> None:
    for seed in range(40):
        _, info = env.reset(seed=seed)
        ended, success, num_actions = False, False, 0
        while not ended:
            thought, actions = env.expert_turn(random.Random(0), 3)
            assert env.thought_correct(thought)
            for action in actions:
                _, _, terminated, truncated, step_info = env.step(action)
                ended, success = terminated or truncated, step_info["success"]
                num_actions += 1
        assert success
        assert num_actions == info["optimal_length"]


def test_expert_admits_a_dead_room() -> None:
    env = room(CORNER)
    thought, actions = env.expert_turn(random.Random(0), 3)
    assert thought == "P(2,2) X(1,1) O(3,3) stuck"
    assert env.thought_correct(thought)
    assert len(actions) == 1
    assert env.step(actions[0])[4]["moved"]
    assert not room(ONE_PUSH).thought_correct("P(1,2) X(1,3) O(1,4) stuck")


@pytest.mark.parametrize(
    ("thought", "truth"),
    [
        ("P(1,2) X(1,3) O(1,4) Right", True),
        ("P(1,2) X(1,3) O(1,4) Left Right Right", True),
        ("P(1,2) X(1,3) O(1,4) Right Right", False),
        ("P(1,2) X(1,3) O(1,4) Up", False),
        ("P(1,2) X(1,3) O(1,4)", False),
        ("P(1,2) X(1,3) O(1,4) ", False),
        ("P(1,1) X(1,3) O(1,4) Right", False),
        ("P(1,2) X(1,4) O(1,3) Right", False),
        ("P(1,2)  X(1,3) O(1,4) Right", False),
        ("P(1,2) X(1,3) O(1,4) Right\n", False),
        ("P(1,2) X(1,3) O(1,4) right", False),
        ("A(1,2) B(1,3) G(1,4) Right", False),
        ("push it right", False),
        ("", False),
    ],
)
def test_truth_of_thoughts(thought: str, truth: bool) -> None:
    assert room(ONE_PUSH).thought_correct(thought) is truth


@pytest.mark.parametrize(
    ("thought", "truth"),
    [("Right", True), ("Left Right Right", True), ("Up", False), ("stuck", False), ("", False)],
)
def test_truth_of_bare_plans(thought: str, truth: bool) -> None:
    assert room(ONE_PUSH, thought="plan").thought_correct(thought) is truth


def test_a_bare_plan_is_what_the_expert_thinks_by_default() -> None:
    assert Sokoban().thought == "plan"
    env = room(ONE_PUSH, thought="plan")
    assert env.expert_turn(random.Random(0), 3) == ("Right", ("Right",))
    assert room(CORNER, thought="plan").expert_turn(random.Random(0), 3)[0] == "stuck"


@given(plan=st.lists(st.sampled_from([*ACTIONS, "stuck", "Jump"]), max_size=6))
def test_a_plan_is_true_iff_it_solves(plan: list[str]) -> None:
    env = room(ONE_PUSH)
    thought = " ".join(("P(1,2) X(1,3) O(1,4)", *plan))
    solved_at = None
    for index, action in enumerate(plan):
        if action not in ACTIONS:
            break
        if env.step(action)[2]:
            solved_at = index
            break
    assert room(ONE_PUSH).thought_correct(thought) is (
        solved_at is not None and solved_at + 1 == len(plan)
    )


def test_letters_speak_letters() -> None:
    env = Sokoban(symbols="letters", thought="facts_and_plan")
    env.reset(seed=0)
    thought, _ = env.expert_turn(random.Random(0), 3)
    assert thought.startswith("A(")
    assert env.thought_correct(thought)


def test_coordinates_determine_the_state() -> None:
    """Two rooms with the same text have the same walls, targets, boxes and player."""
    env = Sokoban(observation="coordinates")
    seen: dict[str, str] = {}
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        assert seen.setdefault(observation, env.state_hash()) == env.state_hash()
    assert len(seen) > 150


def test_every_row_of_a_small_room_is_one_piece() -> None:
    env = Sokoban()
    pieces = set(env.vocabulary())
    assert len(pieces) < 560
    for seed in range(100):
        observation, _ = env.reset(seed=seed)
        assert set(observation.splitlines(keepends=True)) <= pieces
    large = Sokoban(size=8, num_boxes=2)
    pieces = set(large.vocabulary())
    for seed in range(20):
        for row in large.reset(seed=seed)[0].splitlines(keepends=True)[1:-1]:
            assert {row[:4], row[4:]} <= pieces
