"""Training visits no state of an evaluation set: not at its starts, and not on the way either."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boards import canonical_digest
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.frozen_lake.env import layout_key as lake_layout
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sokoban.rooms import layout_key as room_layout
from tests.support.held_out import eval_seeds

STARTS = {"train": 400, "tuning": 150, "eval": 256, "reference": 100}


def room(split: str) -> Sokoban:
    return Sokoban(split=split)  # type: ignore[arg-type]


def lake(split: str) -> FrozenLake:
    return FrozenLake(split=split)  # type: ignore[arg-type]


def layout(env: TextEnv) -> str:
    """Identify what never moves."""
    if isinstance(env, Sokoban):
        return room_layout(env._board)
    assert isinstance(env, FrozenLake)
    return lake_layout(env.size, env._lake.holes, env._lake.goal)


def visited(env: TextEnv, seed: int) -> Iterator[tuple[str, str]]:
    """Iterate over layout and state of what two episodes visit: the expert's, and random moves."""
    for by_expert in (True, False):
        env.reset(seed=seed, options={"noise_seed": seed})
        yield layout(env), env.start_key()
        rng, ended = random.Random(seed), False
        while not ended:
            assert env.actions is not None
            plan = env.expert_turn(rng, 1)[1] if by_expert else ()
            _, _, terminated, truncated, _ = env.step(*plan or (rng.choice(env.actions),))
            ended = terminated or truncated
            yield layout(env), env.start_key()


@pytest.mark.parametrize(
    ("make", "own", "others"),
    [
        (room, "train", ("tuning", "eval", "reference")),
        (room, "tuning", ("eval", "reference")),
        (lake, "train", ("tuning", "eval")),
        (lake, "tuning", ("eval",)),
    ],
)
def test_no_visited_state_belongs_to_another_split(
    make: Callable[[str], TextEnv], own: str, others: tuple[str, ...]
) -> None:
    env = make(own)
    here = {each for seed in range(STARTS[own]) for each in visited(env, seed)}
    layouts, states = ({place[i] for place in here} for i in range(2))
    assert len(states) > 4 * STARTS[own]
    for other in others:
        env = make(other)
        for seed in range(STARTS[other]) if other != "eval" else eval_seeds(env, STARTS[other]):
            env.reset(seed=seed)
            assert env.start_key() not in states
            assert layout(env) not in layouts


@pytest.mark.parametrize("make", [room, lake])
def test_a_layout_is_what_never_moves_up_to_symmetries(make: Callable[[str], TextEnv]) -> None:
    env = make("train")
    for seed in range(30):
        assert len({found for found, _ in visited(env, seed)}) == 1
    marks = list(range(16))
    turned = [marks[(3 - cell % 4) * 4 + cell // 4] for cell in range(16)]
    assert canonical_digest(marks, 4) == canonical_digest(turned, 4)


@pytest.mark.parametrize("make", [room, lake])
def test_evaluation_sets_have_enough_layouts(make: Callable[[str], TextEnv]) -> None:
    """Of 6x6 rooms with one box there are 2,983 layouts to train on and 481 for evaluation sets, of
    4x4 lakes with a path 42,072 and 7,074."""
    for split in ("tuning", "eval"):
        env = make(split)
        layouts = set()
        for seed in eval_seeds(env, 256):
            env.reset(seed=seed)
            layouts.add(layout(env))
        assert len(layouts) > 100


def test_a_split_without_maps_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match=r"1\.0 gave no 4x4 map of split 'tuning'.*to one split"):
        FrozenLake(frozen_probability=1.0, split="tuning").reset(seed=0)


@pytest.mark.parametrize(
    ("env", "start"),
    [
        (Sokoban(split="train"), "######\n#_P__#\n#___X#\n#___O#\n##_#_#\n######"),
        (Sokoban(split="eval"), "######\n#OX__#\n#__P_#\n#__#_#\n#___##\n######"),
        (Sokoban(split="reference"), "######\n#_P__#\n#_X__#\n#___##\n#__O_#\n######"),
        (FrozenLake(split="train"), "_G__\n____\n__OO\n_PO_"),
        (FrozenLake(split="eval"), "P___\nO___\nO__G\n__OO"),
    ],
)
def test_starts_are_those_that_published_scores_are_of(env: TextEnv, start: str) -> None:
    """Another text behind the seeds once gave other boards to every evaluation set."""
    env.reset(seed=FIRST_EVAL_SEED)
    assert env.render_text() == start
