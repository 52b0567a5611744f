"""The mix of difficulties, the separation of the splits, and the speed of the room generator."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Literal

import pytest

from ragen_pl.envs.boards import cells_of, mask_of
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sokoban.paper_rooms import sample_reference_room
from ragen_pl.envs.sokoban.rooms import (
    DIFFICULTIES,
    Room,
    canonical_key,
    difficulty_of_length,
    sample_room,
)
from ragen_pl.envs.sokoban.search import Board, fewest_pushes, shortest_plan
from tests.support.held_out import eval_seeds

MIX = {"2-3": 4, "4-5": 7, "6-8": 7, "9-10": 2}


def turned(found: Room) -> tuple[Board, int, int]:
    """Turn a room by a quarter and mirror it."""
    board, size = found.board, found.board.size

    def to(mask: int) -> int:
        return mask_of((cell % size) * size + cell // size for cell in cells_of(mask))

    transposed = Board(size, to(board.walls), to(board.targets))
    return transposed, to(1 << found.player).bit_length() - 1, to(found.boxes)


@pytest.mark.parametrize("first", [0, 7, 10_013])
def test_the_mix_is_exact_over_twenty_seeds(first: int) -> None:
    for size, num_boxes in ((6, 1), (8, 2)):
        rooms = [sample_room(seed, size, num_boxes, "train") for seed in range(first, first + 20)]
        assert Counter(found.difficulty for found in rooms) == MIX
        for found in rooms:
            shortest, longest = DIFFICULTIES[found.difficulty]
            assert shortest <= found.optimal_length <= longest
            plan = shortest_plan(found.board, found.player, found.boxes)
            assert plan is not None
            assert len(plan) == found.optimal_length
            assert not found.boxes & found.board.targets


@pytest.mark.parametrize("split", ["train", "eval"])
def test_long_rooms_need_two_pushes(split: Literal["train", "eval"]) -> None:
    env = Sokoban(split=split)
    for seed in range(100):
        _, info = env.reset(seed=seed)
        found = sample_room(seed, 6, 1, split)
        assert info == {"difficulty": found.difficulty, "optimal_length": found.optimal_length}
        start = (found.player, found.boxes)
        pushes = fewest_pushes(found.board, start, found.optimal_length)
        assert pushes is not None
        assert pushes >= (2 if found.optimal_length >= 4 else 1)


def test_no_training_room_is_in_an_evaluation_set() -> None:
    train, tuning, eval_set = Sokoban(), Sokoban(split="tuning"), Sokoban(split="eval")
    reference = Sokoban(split="reference")
    keys: dict[str, set[str]] = {}
    for env, count in ((train, 2000), (tuning, 500), (eval_set, 500), (reference, 200)):
        keys[env.split] = set()
        for seed in range(count):
            env.reset(seed=seed)
            keys[env.split].add(env.start_key())
    assert not keys["train"] & keys["eval"]
    assert not keys["train"] & keys["reference"]
    assert not keys["tuning"] & (keys["train"] | keys["eval"] | keys["reference"])
    assert len(keys["train"]) > 1500


def test_symmetric_rooms_share_a_key() -> None:
    for seed in range(50):
        found = sample_room(seed, 6, 1, "train")
        other = turned(found)
        assert canonical_key(*other) == canonical_key(found.board, found.player, found.boxes)


def test_evaluation_starts_are_distinct_and_keep_their_mix() -> None:
    env = Sokoban(split="eval")
    seeds = eval_seeds(env, 200)
    keys: set[str] = set()
    difficulties: Counter[str] = Counter()
    for index, seed in enumerate(seeds):
        assert seed % 20 == index % 20
        _, info = env.reset(seed=seed)
        keys.add(env.start_key())
        difficulties[info["difficulty"]] += 1
    assert len(keys) == 200
    assert difficulties == {name: 10 * count for name, count in MIX.items()}


def test_training_rooms_are_drawn_fast() -> None:
    """In the best of several parts: a busy machine can halve what a second of a processor does."""
    part, speeds = 150, []
    for first in range(5_000_000, 5_000_000 + 6 * part, part):
        start = time.process_time()
        for seed in range(first, first + part):
            sample_room(seed, 6, 1, "train")
        speeds.append(part / (time.process_time() - start))
    print(" ".join(f"{speed:.0f}" for speed in speeds), "rooms/s")
    assert max(speeds) > 1000


def test_reference_rooms_have_the_reference_s_lengths() -> None:
    """Measured there over 60 rooms: median 4, mean 3.8, 98 % solvable in ten moves."""
    rooms = [sample_reference_room(seed, 6, 1) for seed in range(150)]
    lengths = [found.optimal_length for found in rooms]
    assert statistics.median(lengths) in (3, 4)
    assert 3.2 < statistics.mean(lengths) < 4.3
    assert sum(length <= 10 for length in lengths) >= 0.95 * len(rooms)
    assert all(found.difficulty == difficulty_of_length(found.optimal_length) for found in rooms)
