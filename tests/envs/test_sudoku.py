"""Sudoku: its grids and reasons, puzzles, splits, symmetries, rewards, expert and thoughts."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.boards import BoardSplit
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.envs.picture import CELL
from ragen_pl.envs.sudoku.env import Sudoku, Thought
from ragen_pl.envs.sudoku.forms import GridSymmetry, digit_exchanges, form_of, solution_form
from ragen_pl.envs.sudoku.grid import (
    REASONS,
    Grid,
    candidates,
    completions,
    fits,
    holds_by,
    layout,
    needs_guess,
    reason_for,
    unique_solution,
)
from ragen_pl.envs.sudoku.puzzles import sample_puzzle
from tests.support.held_out import eval_seeds

GIVENS = "1.3. .4.2 2..3 .3.1"
SOLUTION = "1234 3412 2143 4321"
HARD = "4.....8.5 .3....... ...7..... .2.....6. ....8.4.. ....1.... ...6.3.7. 5..2..... 1.4......"
"""A puzzle of Norvig's collection, which needs guesses."""


def grid(text: str) -> Grid:
    return tuple(int(mark) if mark != "." else 0 for mark in text.replace(" ", ""))


def puzzle(text: str = GIVENS, thought: Thought = "reasons", **more: Any) -> Sudoku:
    env = Sudoku(thought=thought, **more)
    givens = list(grid(text))
    env.set_state({"size": env.size, "givens": givens, "board": givens, "num_actions": 0})
    return env


def nine(**more: Any) -> Sudoku:
    return Sudoku(size=9, fewest_empty=30, most_empty=45, max_actions=60, **more)


def test_there_are_288_grids_of_four() -> None:
    found = list(completions((0,) * 16))
    assert len(found) == len(set(found)) == 288
    of = layout(4)
    for each in found:
        for kind in of.units:
            assert all({each[cell] for cell in unit} == {1, 2, 3, 4} for unit in kind)
    assert len({solution_form(each) for each in found}) == 2


def test_layouts_are_those_of_sudoku() -> None:
    for size, box in ((4, 2), (9, 3)):
        of = layout(size)
        assert of.box == box
        assert all(len(unit) == size for kind in of.units for unit in kind)
        numbers = tuple(range(size * size))
        assert all(len(read(numbers)) == 2 * (size - 1) + (box - 1) ** 2 for read in of.peers)
    assert layout(9).units[2][4] == (30, 31, 32, 39, 40, 41, 48, 49, 50)


def test_a_hard_puzzle_is_solved_and_needs_guesses() -> None:
    givens = grid(HARD)
    solution = unique_solution(givens)
    assert solution is not None
    assert all(given in (0, digit) for given, digit in zip(givens, solution, strict=True))
    assert needs_guess(givens, solution)
    assert not needs_guess(grid(GIVENS), grid(SOLUTION))


def test_none_or_several_solutions_are_told_apart() -> None:
    assert unique_solution((0,) * 16) is None
    assert unique_solution((1, 1) + (0,) * 14) is None
    assert unique_solution(grid("12.. ..3. .... ....")) is None
    assert unique_solution(grid(GIVENS)) == grid(SOLUTION)
    assert list(completions(grid("123. ...4 .... ...."))) == []


@given(seed=st.integers(0, 10_000))
def test_a_reason_shows_what_all_solutions_have(seed: int) -> None:
    """By enumeration, on parts of grids that have one completion or many."""
    rng = random.Random(seed)
    whole = next(completions((0,) * 16, rng))
    part = tuple(digit if rng.random() < 0.5 else 0 for digit in whole)
    possible = list(completions(part))
    for cell, digit in enumerate(part):
        if digit:
            continue
        assert {each[cell] for each in possible} <= set(candidates(part, cell))
        for value in range(1, 5):
            if reason_for(part, cell, value) is not None:
                assert {each[cell] for each in possible} == {value}
                assert fits(part, cell, value)


@pytest.mark.parametrize(
    ("text", "cell", "digit", "reasons"),
    [
        ("123. .... .... ....", 3, 4, ["cell", "row"]),
        ("1... 2... 3... ....", 12, 4, ["cell", "column"]),
        ("12.. 3... .... ....", 5, 4, ["cell", "box"]),
        ("1... ..1. .... .2..", 13, 1, []),
        ("1... .... .2.. ..1.", 9, 1, []),
        ("1... ..1. .2.. ....", 13, 1, ["column", "box"]),
        ("4... ..4. .... ...4", 9, 4, ["row", "column", "box"]),
        ("12.. .... .... ....", 2, 3, []),
    ],
)
def test_reasons_by_hand(text: str, cell: int, digit: int, reasons: list[str]) -> None:
    part = grid(text)
    assert [each for each in REASONS[:4] if holds_by(part, cell, digit, each)] == reasons
    assert reason_for(part, cell, digit) == next(iter(reasons), None)


@pytest.mark.parametrize("make", [Sudoku, nine, lambda: nine(reasoning="any")])
def test_puzzles_have_one_solution_and_as_many_empty_cells_as_named(make: Any) -> None:
    env = make()
    for seed in range(20):
        _, info = env.reset(seed=seed)
        givens = tuple(env.get_state()["givens"])
        assert len(list(completions(givens))) == 1
        assert givens.count(0) == info["optimal_length"]
        first, last = map(int, info["difficulty"].removesuffix(" guess").split("-"))
        assert first <= givens.count(0) <= last


def test_numbers_of_empty_cells_are_evenly_mixed() -> None:
    counts = Counter(
        Sudoku(fewest_empty=3, most_empty=7).reset(seed=seed)[1]["optimal_length"]
        for seed in range(40)
    )
    assert counts == dict.fromkeys(range(3, 8), 8)


def test_guesses_are_named_in_the_difficulty() -> None:
    env = Sudoku(size=9, fewest_empty=50, most_empty=50, max_actions=60, reasoning="any")
    for seed in range(40):
        _, info = env.reset(seed=seed)
        reasons = set()
        while 0 in env.get_state()["board"]:
            thought, actions = env.expert_turn(random.Random(0), 9)
            reasons |= set(thought.split(" ")[1::2])
            assert env.thought_correct(thought)
            for action in actions:
                *_, last = env.step(action)
        assert last["success"]
        assert ("guess" in reasons) == info["difficulty"].endswith("guess")
        if "guess" in reasons:
            return
    raise AssertionError("no puzzle needed a guess")


def random_order(size: int, rng: random.Random) -> list[int]:
    """Exchange rows (or columns) within bands, and bands."""
    box = layout(size).box
    bands = [rng.sample(range(first, first + box), box) for first in range(0, size, box)]
    rng.shuffle(bands)
    return [line for band in bands for line in band]


def random_symmetry(size: int, rng: random.Random) -> GridSymmetry:
    """Sample from all symmetries of Sudoku."""
    rows, columns = random_order(size, rng), random_order(size, rng)
    cells = [row * size + column for row in rows for column in columns]
    if rng.random() < 0.5:
        cells = [cell % size * size + cell // size for cell in cells]
    return GridSymmetry(tuple(cells), (0, *rng.sample(range(1, size + 1), size)))


def test_exchanges_of_digits_are_the_symmetries_that_keep_places() -> None:
    for size, number in ((4, 24), (9, 48)):
        found = digit_exchanges(size)
        assert len(found) == len({each.digits for each in found}) == number
        assert found[0].digits == tuple(range(size + 1))
        assert all(each.cells == tuple(range(size * size)) for each in found)


@given(rng=st.randoms(use_true_random=False), size=st.sampled_from([4, 9]))
def test_symmetries_keep_solutions_reasons_and_forms(rng: random.Random, size: int) -> None:
    seed = rng.randrange(5)
    givens = sample_puzzle(seed, size, 4 * size - 7, "singles", "train").givens
    solution = unique_solution(givens)
    assert solution is not None
    symmetry = random_symmetry(size, rng)
    image = symmetry.image(givens)
    assert unique_solution(image) == symmetry.image(solution)
    assert form_of(image) == form_of(givens)
    assert solution_form(symmetry.image(solution)) == solution_form(solution)
    lines = [{"row", "column"}, {"cell"}, {"box"}]
    for cell, digit in enumerate(solution):
        if not givens[cell]:
            place = symmetry.cells[cell], symmetry.digits[digit]
            here = {each for each in REASONS[:4] if holds_by(givens, cell, digit, each)}
            there = {each for each in REASONS[:4] if holds_by(image, *place, each)}
            assert [len(here & kind) for kind in lines] == [len(there & kind) for kind in lines]


def test_other_puzzles_have_other_forms() -> None:
    forms = {form_of(sample_puzzle(seed, 9, 40, "singles", "train").givens) for seed in range(30)}
    assert len(forms) == 30


def split_starts(split: BoardSplit, **more: Any) -> set[str]:
    env = Sudoku(split=split, **more)
    seeds = eval_seeds(env, 100) if split == "eval" else range(300)
    return {env.start_key() for seed in seeds if env.reset(seed=seed)}


def test_splits_share_no_start() -> None:
    one, two, three = (split_starts(split) for split in ("train", "tuning", "eval"))
    assert not one & two
    assert not one & three
    assert not two & three
    assert len(three) > 85


def test_splits_of_nine_share_no_solution() -> None:
    forms = []
    for split in ("train", "tuning", "eval"):
        env = nine(split=split)
        found = set()
        for seed in range(8):
            env.reset(seed=seed)
            found.add(solution_form(unique_solution(tuple(env.get_state()["givens"])) or ()))
        forms.append(found)
    assert all(len(found) == 8 for found in forms)
    assert len(set.union(*forms)) == 24


def test_rewards_are_the_paper_s() -> None:
    env = puzzle()
    _, reward, terminated, truncated, info = env.step("1,2,2")
    assert (reward, terminated, truncated) == (1.0, False, False)
    assert info == {"success": False, "legal": True}
    before = env.get_state()["board"]
    for action in ("1,2,2", "1,2,4", "2,1,4", "1,1,1"):  # filled; filled; in the row; given
        _, reward, *_, info = env.step(action)
        assert reward == pytest.approx(-0.1)
        assert not info["legal"]
    assert env.get_state()["board"] == before
    assert env.get_state()["num_actions"] == 5


def test_the_last_digit_earns_ten_more_and_ends() -> None:
    env = puzzle("123. 3412 2143 4321")
    assert env.step("1,4,4")[1:] == (11.0, True, False, {"success": True, "legal": True})


def test_a_wrong_digit_that_meets_no_equal_one_stays_and_earns_half() -> None:
    env = puzzle("..3. 341. 2... 4321")
    assert env.step("3,2,1")[1:] == (1.0, False, False, {"success": False, "legal": True})
    assert env.step("1,1,1")[1:] == (1.0, False, False, {"success": False, "legal": True})
    env = puzzle("..3. .4.. 2... .321")
    assert env.step("2,1,1")[1:] == (0.5, False, False, {"success": False, "legal": True})
    assert env.get_state()["board"][4] == 1
    assert env.step("2,1,3")[1] == pytest.approx(-0.1)
    assert env.thought_correct("stuck")


def test_actions_run_out() -> None:
    env = puzzle(max_actions=10)
    for _ in range(9):
        assert env.step("1,1,1")[2:4] == (False, False)
    assert env.step("1,1,1")[2:4] == (False, True)


def test_the_observation_shows_grid_and_candidates() -> None:
    text = puzzle().render_text()
    assert text.split("\n")[:5] == [
        "1 . | 3 .",
        ". 4 | . 2",
        "----+----",
        "2 . | . 3",
        ". 3 | . 1",
    ]
    assert text.split("\n")[5] == "1,2: 2"
    assert len(text.split("\n")) == 5 + 8
    assert puzzle(observation="grid").render_text() == "\n".join(text.split("\n")[:5])
    env = puzzle("..3. .4.. 2... .321")
    env.step("1,1,1")
    env.step("1,2,2")
    assert "1,4: 4" in env.render_text().split("\n")


@pytest.mark.parametrize("make", [Sudoku, nine, lambda: nine(observation="grid")])
def test_the_expert_solves_cell_by_cell(make: Any) -> None:
    env = make()
    for seed in range(5):
        _, info = env.reset(seed=seed)
        total, ended, steps = 0.0, False, 0
        while not ended:
            thought, actions = env.expert_turn(random.Random(0), 4)
            assert thought.split(" ")[::2] == list(actions)
            assert env.thought_correct(thought)
            assert env.thought_grounding(thought, actions) == 1.0
            assert env.hindsight_turn(actions, 4) == (thought, actions)
            for action in actions:
                _, reward, ended, _, last = env.step(action)
                total, steps = total + reward, steps + 1
        assert (steps, last["success"]) == (info["optimal_length"], True)
        assert total == info["optimal_length"] + 10


def test_thoughts_are_judged_word_by_word() -> None:
    env = puzzle()
    assert env.expert_turn(random.Random(0), 2) == ("1,2,2 cell 1,4,4 cell", ("1,2,2", "1,4,4"))
    for thought, share in (
        ("1,2,2 cell 1,4,4 cell", 1.0),
        ("1,2,2 row", 1.0),
        ("1,2,2 guess", 0.5),
        ("1,2,4 cell", 0.0),
        ("1,2,2 cell 1,2,2 cell", 0.5),
        ("1,2,2", 0.5),
        ("1,2,2 cell ", 2 / 4),
        ("", 0.0),
        ("stuck", 0.0),
        ("stuck stuck", 0.0),
        ("cell 1,2,2", 0.0),
    ):
        assert env.thought_grounding(thought, ()) == pytest.approx(share), thought
        assert env.thought_correct(thought) is (share == 1.0)
    plan = puzzle(thought="plan")
    assert plan.expert_turn(random.Random(0), 2) == ("1,2,2 1,4,4", ("1,2,2", "1,4,4"))
    assert plan.thought_correct("1,4,4 1,2,2")
    assert not plan.thought_correct("1,4,4 1,2,2 cell")
    assert plan.thought_grounding("1,4,4 1,2,4", ()) == 0.5


def test_after_a_wrong_digit_the_expert_is_stuck() -> None:
    env = Sudoku(fewest_empty=10)
    for seed in range(20):
        env.reset(seed=seed)
        right = unique_solution(tuple(env.get_state()["givens"])) or ()
        board = env.get_state()["board"]
        wrong = [
            (cell, digit)
            for cell in range(16)
            if not board[cell]
            for digit in candidates(board, cell)
            if digit != right[cell]
        ]
        cell, digit = wrong[0]
        assert not env.thought_correct("stuck")
        _, reward, terminated, _, info = env.step(f"{cell // 4 + 1},{cell % 4 + 1},{digit}")
        assert (reward, info) == (0.5, {"success": False, "legal": True})
        assert env.thought_correct("stuck")
        if not terminated:
            thought, (action,) = env.expert_turn(random.Random(0), 3)
            assert thought == "stuck"
            assert env.step(action)[-1]["legal"]


def test_an_episode_without_a_legal_action_is_over() -> None:
    ends = 0
    for seed in range(60):
        env, rng, ended = Sudoku(fewest_empty=10), random.Random(seed), False
        env.reset(seed=seed)
        while not ended:
            action = rng.choice(list(env._legal_actions()))
            _, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
        assert terminated
        assert info["success"] == (0 not in env.get_state()["board"])
        ends += not info["success"]
        with pytest.raises(RuntimeError, match="has ended"):
            env.step(action)
    assert ends > 10


def test_hindsight_has_words_for_a_guess_only_where_no_digit_has_a_reason() -> None:
    env = Sudoku(size=9, fewest_empty=50, most_empty=50, max_actions=60, reasoning="any")
    info = {"difficulty": ""}
    for seed in range(60):
        _, info = env.reset(seed=seed)
        if info["difficulty"].endswith("guess"):
            break
    assert info["difficulty"].endswith("guess")
    thought, guesses = "", 0
    while " guess" not in thought:
        solution = unique_solution(tuple(env.get_state()["givens"])) or ()
        board = env.get_state()["board"]
        unclear = [c for c in range(81) if not board[c] and not reason_for(board, c, solution[c])]
        thought, actions = env.expert_turn(random.Random(0), 1)
        if unclear and " guess" not in thought:
            cell, guesses = unclear[0], guesses + 1
            name = f"{cell // 9 + 1},{cell % 9 + 1},{solution[cell]}"
            assert env.hindsight_turn((name,), 1) is None
            assert not env.thought_correct(f"{name} guess")
        assert env.hindsight_turn(actions, 1) == (thought, actions)
        assert env.thought_correct(thought)
        env.step(actions[0])
    assert guesses
    filled = env.get_state()["board"].index(next(filter(None, env.get_state()["board"])))
    assert env.hindsight_turn((f"{filled // 9 + 1},{filled % 9 + 1},1",), 1) is None


def test_givens_without_a_single_solution_are_refused() -> None:
    state = {"size": 4, "givens": [0] * 16, "board": [0] * 16, "num_actions": 0}
    with pytest.raises(ValueError, match=r"givens: .* no solution, or several"):
        Sudoku().set_state(state)
    with pytest.raises(ValueError, match="size: the state has 9"):
        Sudoku().set_state({**state, "size": 9})


def test_the_prompt_describes_the_actions_in_a_few_words() -> None:
    assert Sudoku().actions_text == "row,column,digit, each from 1 to 4"
    assert len(nine().actions) == 729
    assert Sudoku().actions[:5] == ("1,1,1", "1,1,2", "1,1,3", "1,1,4", "1,2,1")


def test_a_picture_shows_every_digit_and_who_placed_it() -> None:
    env = puzzle()
    given = env.get_state()
    placed = {**given, "givens": [0, *given["givens"][1:]]}
    other = {**given, "board": [2, *given["board"][1:]]}
    pictures = [env.draw(state).picture() for state in (given, placed, other)]
    assert pictures[0].shape == (4 * CELL, 4 * CELL, 3)
    for one, two in ((0, 1), (0, 2)):
        rows, columns = np.nonzero((pictures[one] != pictures[two]).any(axis=2))
        assert max(rows) < CELL
        assert max(columns) < CELL
    digits = [{**given, "board": [n, *given["board"][1:]]} for n in range(10)]
    assert len({env.draw(state).picture().tobytes() for state in digits}) == 10


def test_the_contract_holds() -> None:
    check_contract(Sudoku(), "env")
    check_contract(nine(thought="plan", observation="grid"), "env")


def test_starts_are_those_that_published_scores_are_of() -> None:
    env = Sudoku(split="eval", observation="grid")
    env.reset(seed=FIRST_EVAL_SEED + 19)
    assert env.render_text() == ". . | 4 1\n. 1 | . 3\n----+----\n. . | . .\n2 . | 1 ."
    large = nine(split="eval", observation="grid")
    large.reset(seed=FIRST_EVAL_SEED)
    assert large.render_text().split("\n")[0] == "4 6 . | 5 2 . | 7 . 9"
