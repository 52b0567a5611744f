"""The contract for the environments in free text: processes, copies, states, splits, hash seeds."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ragen_pl.envs import SearchQA, TextEnv, WebShop
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.eval_seeds import overlap
from ragen_pl.envs.tools import Calculator
from ragen_pl.envs.workers import EnvHost
from tests.support.held_out import eval_seeds
from tests.support.other_hashes import computed_elsewhere

VARIANTS: dict[str, Callable[[], TextEnv]] = {
    "search": lambda: SearchQA(people=60, tools=[Calculator()]),
    "search-brackets": lambda: SearchQA(
        people=60, fewest_hops=1, most_hops=3, calls="brackets", repeat_question=False, top_k=1
    ),
    "shop": lambda: WebShop(products=40),
    "shop-text": lambda: WebShop(products=40, observation="text", results_per_page=3),
}
ACTIONS = (
    *("", "search[Port]", "click[Buy Now]", "click[next >]", "click[Back to Search]", "finish[x]"),
    *(
        '{"name": "search", "arguments": {"query": "works tea"}}',
        "search[green tea]",
        "calculate[2]",
    ),
)


@pytest.fixture(params=VARIANTS, name="env")
def _env(request: pytest.FixtureRequest) -> TextEnv:
    return VARIANTS[request.param]()


def play(env: TextEnv, seed: int, choose: Callable[[TextEnv], str]) -> list[list[object]]:
    """Play an episode; all observations, rewards and ends."""
    text, info = env.reset(seed=seed, options={"noise_seed": 7})
    steps: list[list[object]] = [[env.instruction, text, str(info)]]
    has_ended = False
    while not has_ended:
        text, reward, terminated, truncated, info = env.step(choose(env))
        has_ended = terminated or truncated
        steps.append([text, reward, terminated, truncated, info["success"]])
        assert len(text) < 5000
        assert terminated or not info["success"]
    assert len(steps) - 1 <= env.max_actions
    return steps


def at_random(env: TextEnv, seed: int) -> list[list[object]]:
    rng = random.Random(seed)
    return play(env, seed, lambda _: rng.choice(ACTIONS))


def by_expert(env: TextEnv, seed: int) -> list[list[object]]:
    return play(env, seed, lambda each: each.expert_turn(random.Random(0), 1)[1][0])


def test_the_checker_finds_nothing(env: TextEnv) -> None:
    check_contract(env, "env")


def test_seeds_decide_everything_and_leave_global_random_state_alone(env: TextEnv) -> None:
    before = (random.getstate(), str(np.random.get_state()))
    for seed in (0, 13, (1 << 32) + 7):
        assert at_random(env, seed) == at_random(copy.deepcopy(env), seed)
    assert (random.getstate(), str(np.random.get_state())) == before


def played() -> dict[str, Any]:
    """Play some episodes of each."""
    return {name: [by_expert(make(), s) for s in (0, 5)] for name, make in VARIANTS.items()}


def test_another_process_with_other_hashes_plays_the_same() -> None:
    assert computed_elsewhere(__file__, "played") == json.loads(json.dumps(played()))


def test_a_restored_state_and_a_pickled_copy_go_on_alike(env: TextEnv) -> None:
    other = copy.deepcopy(env)
    for seed in range(6):
        rng = random.Random(seed)
        env.reset(seed=seed, options={"noise_seed": 3})
        env.step(env.expert_turn(rng, 1)[1][0])
        other.reset(seed=1)
        other.set_state(json.loads(json.dumps(env.get_state())))
        twin = pickle.loads(pickle.dumps(env))
        assert other.render_text() == twin.render_text() == env.render_text()
        action = env.expert_turn(rng, 1)[1][0]
        assert other.step(action) == twin.step(action) == env.step(action)
        assert other.get_state() == twin.get_state() == env.get_state()


def test_evaluation_starts_are_none_of_training_s(env: TextEnv) -> None:
    held_out = copy.deepcopy(env)
    held_out.split = "eval"  # type: ignore[attr-defined]
    found = overlap(held_out, eval_seeds(held_out, 10), env, range(60))
    assert found.shared == 0
    assert found.starts > 5


def test_the_pieces_of_the_vocabulary_spell_the_observations(env: TextEnv) -> None:
    """Few characters of an episode are outside the pieces, numbers and prices apart."""
    pieces = sorted({each for each in env.vocabulary() if len(each) > 1}, key=len, reverse=True)
    assert len(pieces) < 1000
    text = "\n".join(str(step[0]) for step in by_expert(env, 3)[1:])
    rest = text
    for piece in pieces:
        rest = rest.replace(piece, "\0")
    left = sum(character.isalpha() for character in rest)
    assert left < 0.1 * len(text), rest


@pytest.mark.run
def test_they_play_the_same_in_a_worker(env: TextEnv) -> None:
    host = EnvHost(1, 60.0)
    try:
        remote = host.wrap(env)
        assert remote.tools == env.tools
        assert remote.actions_text == env.actions_text
        assert by_expert(remote, 3) == by_expert(env, 3)
    finally:
        host.close()
