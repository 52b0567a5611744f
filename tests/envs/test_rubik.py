"""The 2×2×2 cube: its group, distances, scrambles, splits, symmetries, expert and thoughts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.envs.picture import CELL
from ragen_pl.envs.rubik.cube import (
    ACTIONS,
    CORNER_NAMES,
    SOLVED,
    SYMMETRIES,
    canonical,
    check_cube,
    is_solved,
    recolored,
    turn,
)
from ragen_pl.envs.rubik.env import Rubik
from ragen_pl.envs.rubik.search import distance, plan_progress, positions_at, shortest_plan, solves
from ragen_pl.envs.rubik.starts import inverse
from tests.support.held_out import eval_seeds

TURNS = st.lists(st.sampled_from(ACTIONS), max_size=12)
ROTATION = {"U": "D'", "R": "L'", "F": "B'"}
"""A turn, and one of the opposite face that only turns the whole cube back."""


def turned(*turns: str, cube: str = SOLVED) -> str:
    for name in turns:
        cube = turn(cube, name)
    return cube


def rubik(*turns: str, **arguments: str) -> Rubik:
    env = Rubik(**arguments)  # type: ignore[arg-type]
    env.set_state({"stickers": turned(*turns), "num_actions": 0})
    return env


@given(turns=TURNS)
def test_turns_are_a_group(turns: list[str]) -> None:
    cube = turned(*turns)
    check_cube(cube)
    for name in ACTIONS:
        assert turned(name, inverse(name), cube=cube) == cube
        assert turned(*[name] * 4, cube=cube) == cube
        assert len({turned(*[name] * n, cube=cube) for n in range(4)}) == 4
    assert turned("U", "D", cube=cube) == turned("D", "U", cube=cube)
    assert turned(*[*reversed([inverse(name) for name in turns])], cube=cube) == SOLVED


def test_orders_of_well_known_sequences() -> None:
    """The corners of a 3×3×3 cube give the same: their part of the orders 105 and 63."""
    for sequence, order in (("R U R' U'", 6), ("R U", 15), ("R U'", 9)):
        cube, count = turned(*sequence.split()), 1
        while cube != SOLVED:
            cube, count = turned(*sequence.split(), cube=cube), count + 1
        assert count == order


def test_turns_go_clockwise_as_seen_from_outside() -> None:
    """Written down from a real cube, white above and green in front."""
    nets = {
        "U": "  WW\n  WW\nGGRRBBOO\nOOGGRRBB\n  YY\n  YY",
        "R": "  WG\n  WG\nOOGYRRWB\nOOGYRRWB\n  YB\n  YB",
        "F": "  WW\n  OO\nOYGGWRBB\nOYGGWRBB\n  RR\n  YY",
        "D": "  WW\n  WW\nOOGGRRBB\nBBOOGGRR\n  YY\n  YY",
        "L": "  BW\n  BW\nOOWGRRBY\nOOWGRRBY\n  GY\n  GY",
        "B": "  RR\n  WW\nWOGGRYBB\nWOGGRYBB\n  YY\n  OO",
    }
    for name, net in nets.items():
        assert rubik(name).render_text() == net


def test_positions_by_distance_are_the_published_numbers() -> None:
    """Quarter turns, whole rotations left aside (Jaap's Puzzle Page)."""
    assert [len(positions_at(n)) for n in range(8)] == [1, 6, 27, 120, 534, 2256, 8969, 33058]


def test_twelve_turns_and_six_reach_the_same() -> None:
    """A search with all twelve turns on whole sticker patterns, against that with three faces."""
    layer, seen = {SOLVED}, {SOLVED}
    for n, size in ((1, 12), (2, None), (3, None)):
        layer = {turn(cube, name) for cube in layer for name in ACTIONS} - seen
        seen |= layer
        assert size is None or len(layer) == size
        unsolved = {cube for cube in layer if distance(cube) == n}
        assert {recolored(cube) for cube in unsolved} == positions_at(n)
        assert all((distance(cube) or 0) <= n for cube in layer)


@settings(max_examples=20)
@given(turns=st.lists(st.sampled_from(ACTIONS), min_size=12, max_size=30))
def test_far_cubes_have_plans_as_long_as_their_distance(turns: list[str]) -> None:
    cube = turned(*turns)
    plan = shortest_plan(cube)
    assert solves(cube, plan) or not plan
    assert len(plan) == distance(cube)
    assert distance(cube, len(plan)) == len(plan)
    assert distance(cube, len(plan) - 1) is None
    assert {distance(turn(cube, name)) for name in ACTIONS} <= {len(plan) - 1, len(plan) + 1}


@given(turns=TURNS)
def test_opposite_turns_differ_by_a_rotation(turns: list[str]) -> None:
    cube = turned(*turns)
    for name, other in ROTATION.items():
        assert distance(turned(name, other, cube=cube)) == distance(cube)
        assert is_solved(turned(name, other))
        assert turned(name, other) != SOLVED


@given(turns=TURNS, number=st.integers(0, len(SYMMETRIES) - 1))
def test_symmetries_keep_turns_distances_and_the_solved_cube(turns: list[str], number: int) -> None:
    symmetry, cube = SYMMETRIES[number], turned(*turns)
    assert symmetry.image(SOLVED) == SOLVED
    assert symmetry.image(cube) == turned(*[symmetry.actions[name] for name in turns])
    assert distance(symmetry.image(cube)) == distance(cube)
    assert canonical(symmetry.image(cube)) == canonical(cube)
    assert canonical(turned("U", "D'", cube=cube)) == canonical(cube)


def test_there_are_48_symmetries_and_they_differ() -> None:
    cube = turned("R", "U", "F", "R'", "U", "U")
    assert len({symmetry.image(cube) for symmetry in SYMMETRIES}) == 48
    assert SYMMETRIES[0].image(cube) == cube
    assert sum(symmetry.is_rotation for symmetry in SYMMETRIES) == 24
    forms = [len({canonical(cube) for cube in positions_at(n)}) for n in range(1, 5)]
    assert forms == [1, 3, 6, 17]


@pytest.mark.parametrize(
    "stickers",
    [
        "",
        SOLVED[:-1],
        "W" * 24,
        SOLVED.replace("W", "X"),
        SOLVED.translate(str.maketrans("RO", "OR")),  # a mirrored cube
    ],
)
def test_what_is_no_cube_is_refused(stickers: str) -> None:
    with pytest.raises(ValueError, match="stickers: no turns lead"):
        Rubik().set_state({"stickers": stickers, "num_actions": 0})


def test_a_corner_twisted_alone_is_refused() -> None:
    cube = list(SOLVED)  # URF: the last sticker of U, the first of R, the second of F
    cube[3], cube[4], cube[9] = cube[4], cube[9], cube[3]
    with pytest.raises(ValueError, match="stickers"):
        check_cube("".join(cube))


def test_solving_earns_one_and_ends() -> None:
    env = rubik("R", "U")
    assert env.step("U'")[1:] == (0.0, False, False, {"success": False})
    assert env.step("R'")[1:] == (1.0, True, False, {"success": True})


def test_actions_run_out() -> None:
    env = Rubik(longest=2, max_actions=2)
    env.set_state({"stickers": turned("R", "U"), "num_actions": 0})
    assert env.step("F")[2:4] == (False, False)
    assert env.step("F")[2:4] == (False, True)


def test_scrambles_need_as_many_turns_as_they_have() -> None:
    env, seen = Rubik(shortest=2, longest=9), Counter[str]()
    for seed in range(40):
        _, info = env.reset(seed=seed)
        assert info["optimal_length"] == distance(env.get_state()["stickers"])
        seen[info["difficulty"]] += 1
    assert seen.keys() == set("23456789")
    assert set(seen.values()) <= {4, 6}


def test_random_turns_may_partly_undo_each_other() -> None:
    env, seen = Rubik(shortest=6, longest=6, scramble="turns"), Counter[int]()
    for seed in range(60):
        _, info = env.reset(seed=seed)
        seen[info["optimal_length"]] += 1
    assert seen.keys() <= {2, 4, 6}  # every turn is an odd permutation of the corners
    assert len(seen) > 1
    with pytest.raises(ValueError, match=r"too rare.* set scramble to 'turns'"):
        Rubik(longest=13)
    Rubik(longest=13, scramble="turns")


def test_splits_share_near_starts_alone() -> None:
    starts = {}
    for split in ("train", "tuning", "eval"):
        env = Rubik(shortest=3, longest=6, split=split)  # type: ignore[arg-type]
        starts[split] = {
            (info["difficulty"], env.start_key())
            for seed in (eval_seeds(env, 200) if split == "eval" else range(800))
            for _, info in [env.reset(seed=seed)]
        }
    for one, other in (("train", "tuning"), ("train", "eval"), ("tuning", "eval")):
        shared = starts[one] & starts[other]
        assert {difficulty for difficulty, _ in shared} == {"3"}
    assert Counter(difficulty for difficulty, _ in starts["eval"])["6"] > 10


def test_the_expert_solves_in_the_fewest_turns() -> None:
    env = Rubik(longest=8)
    for seed in range(20):
        _, info = env.reset(seed=seed)
        turns, ended = 0, False
        while not ended:
            thought, actions = env.expert_turn(random.Random(0), 2)
            assert env.thought_correct(thought)
            assert env.thought_grounding(thought, actions) == 1.0
            for action in actions:
                _, reward, ended, _, _ = env.step(action)
                turns += 1
        assert (turns, reward) == (info["optimal_length"], 1.0)


def test_a_thought_is_true_iff_its_last_turn_solves() -> None:
    env = rubik("R", "U")
    for thought in ("U' R'", "U U U R R R", "U' F F' R'", "D' F'"):
        assert env.thought_correct(thought)
    for thought in (
        "",
        "U'",
        "U' R' U U'",
        "U' R' ",
        "D' R'",
        "u' r'",
        "U'  R'",
        "U', R'",
        "R' U'",
    ):
        assert not env.thought_correct(thought)


def test_facts_are_the_corners() -> None:
    env = rubik("R", thought="facts_and_plan")
    thought, actions = env.expert_turn(random.Random(0), 3)
    assert actions == ("R'",)
    facts = thought.split(" ")[:-1]
    assert [fact[:3] for fact in facts] == list(CORNER_NAMES)
    assert "URF:GRY" in facts  # its upper sticker is green now, that of F yellow
    assert "UFL:WGO" in facts
    assert env.thought_correct(thought)
    assert not env.thought_correct("R'")
    assert not env.thought_correct(thought.replace("URF:GRY", "URF:RGY"))
    assert env.thought_grounding(thought.replace("URF:GRY", "URF:RGY"), ()) == pytest.approx(8 / 9)
    assert env.thought_grounding(thought.replace(" R'", " U"), ()) == pytest.approx(8 / 9)
    assert env.hindsight_turn(("R'",), 3) == (thought, actions)


def test_a_plan_is_graded_by_how_far_it_leads() -> None:
    cube = turned("R", "U", "F")
    assert plan_progress(cube, ("F'", "U'", "R'")) == 1.0
    assert plan_progress(cube, ("F'", "U'")) == pytest.approx(2 / 3)
    assert plan_progress(cube, ("F'", "stop", "U'", "R'")) == pytest.approx(1 / 3)
    assert plan_progress(cube, ("F'", "U'", "R'", "R")) == pytest.approx(3 / 4)
    assert plan_progress(cube, ("R",)) == plan_progress(cube, ()) == 0.0


def test_a_picture_shows_every_sticker() -> None:
    env = Rubik()
    picture = env.draw({"stickers": SOLVED, "num_actions": 0}).picture()
    assert picture.shape == (6 * CELL, 8 * CELL, 3)
    other = env.draw({"stickers": turned("R"), "num_actions": 0}).picture()
    assert (picture != other).any(axis=2).reshape(6, CELL, 8, CELL).any(axis=(1, 3)).sum() == 8


def test_the_contract_holds() -> None:
    check_contract(Rubik(), "env")
    check_contract(Rubik(scramble="turns", thought="facts_and_plan"), "env")


def test_starts_are_those_that_published_scores_are_of() -> None:
    env = Rubik(split="eval")
    env.reset(seed=FIRST_EVAL_SEED + 19)
    assert env.render_text() == "  RW\n  BG\nWRYOYBOB\nGRYWROYW\n  GG\n  OB"
