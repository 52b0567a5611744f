"""No key of an environment is without effect: changing it changes an episode.

The instruction is left out of what is compared: a key that only changed it would be a promise that
the play does not keep.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from ragen_pl import envs
from ragen_pl.envs import Bandit, FrozenLake, Rubik, Sokoban, Sudoku
from ragen_pl.envs.base import TextEnv
from tests.support.config_key_effects import KeyProof, Outcome, every_key, spelled
from tests.support.text_env_proofs import TEXT_PROOFS

SEEDS = range(6)


def transcript(env: TextEnv, seed: int) -> list[Any]:
    """Play one trajectory, the first turn by the expert and the others at random."""
    text, info = env.reset(seed=seed, options={"noise_seed": seed})
    rng = random.Random(seed)
    thought, actions = env.expert_turn(rng, 2)
    told: list[Any] = [text, info, env.start_key(), thought, actions, env.thought_correct(thought)]
    ended = False
    while not ended:
        for action in actions:
            text, reward, terminated, truncated, info = env.step(action)
            told += [text, reward, terminated, truncated, info, env.state_hash()]
            ended = terminated or truncated
            if ended:
                break
        actions = (rng.choice(env.actions or ("",)),)
    return told


def proof(
    kind: type[TextEnv], others: dict[str, tuple[Any, ...]], *bases: dict[str, Any]
) -> KeyProof:
    def play(arguments: dict[str, Any]) -> Outcome:
        env = kind(**arguments)
        return {str(seed): transcript(env, seed) for seed in SEEDS}

    named = {f"{kind.__name__}.{key}": values for key, values in others.items()}
    return KeyProof(kind, play, bases or ({},), named)


PROOFS = {
    "Sokoban": proof(Sokoban, {"size": (7, 5), "num_boxes": (2,), "max_actions": (3,)}),
    "FrozenLake": proof(
        FrozenLake,
        {
            "size": (5,),
            "frozen_probability": (0.5, 1.0),
            "intended": (0.2, 1.0),
            "max_actions": (3,),
        },
    ),
    # The paper's own pair is the same on both splits, as the constructor says.
    "Bandit": proof(Bandit, {}, {"pair": "named"}),
    "Rubik": proof(
        Rubik,
        {"shortest": (2,), "longest": (5,), "max_actions": (6,)},
        {"shortest": 4, "longest": 6},
    ),
    "Sudoku": proof(
        Sudoku,
        {"size": (9, 4), "fewest_empty": (5,), "most_empty": (8,), "max_actions": (10,)},
        {},
        {"size": 9},
    ),
    **TEXT_PROOFS,
}


def test_every_environment_is_here() -> None:
    assert PROOFS.keys() == {kind.__name__ for kind in envs.SHIPPED}


@pytest.mark.parametrize("subject", PROOFS)
def test_the_same_play_twice_is_the_same(subject: str) -> None:
    PROOFS[subject].check_reproducible()


@pytest.mark.parametrize(("subject", "path"), every_key(PROOFS), ids=spelled)
def test_a_key_of_an_environment_acts(subject: str, path: tuple[str, ...]) -> None:
    if path == ("engine",):
        pytest.importorskip("bm25s", reason="needs the extra search: pip install -e '.[search]'")
    PROOFS[subject].check(path)
