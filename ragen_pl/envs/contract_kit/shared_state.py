"""State that copies of an environment share: global random generators, classes and modules."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Callable, Iterator

import numpy as np

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract_kit.trial import play, play_at_random
from ragen_pl.runtime.findings import Finding, failure, warning


def find_shared_state(env: TextEnv, key: str, seed: int) -> Iterator[Finding]:
    """Play an episode and look what has changed outside of the environment.

    Args:
        env: The environment, which is not changed.
        key: Its name in messages.
        seed: Seed of the start.
    """
    before = _outside(env)
    _try_to_play(copy.deepcopy(env), seed)
    for name, value in _outside(env).items():
        if before.get(name) == value:
            continue
        if name in _GENERATORS:
            yield failure(
                f"{key} draws from {name}'s global random state, so that runs cannot be repeated "
                "or resumed",
                'draw from random.Random(seed), and later from options["noise_seed"]',
            )
        else:
            yield warning(
                f"{key} changes {name} while it plays, which all its copies share: trajectories "
                "influence one another",
                "keep it in the instance and in get_state",
            )


def _try_to_play(env: TextEnv, seed: int) -> None:
    """Play at random; an error is another check's."""
    try:
        play(env, seed, 1, play_at_random)
    except Exception:  # the boundary to user code; the check of the contract reports it
        return


_GENERATORS: dict[str, Callable[[], bytes]] = {
    "random": lambda: pickle.dumps(random.getstate()),
    "numpy.random": lambda: pickle.dumps(np.random.get_state()),
}


def _outside(env: TextEnv) -> dict[str, bytes]:
    """Return the plain data outside of the environment that its code can reach, by name."""
    found = {name: state() for name, state in _GENERATORS.items()}
    for kind in type(env).__mro__:
        if not issubclass(kind, TextEnv) or kind is TextEnv:
            continue
        module = sys.modules.get(kind.__module__)
        for owner, values in (
            (f"{kind.__name__}.", vars(kind)),
            (f"{kind.__module__}.", {} if module is None else vars(module)),
        ):
            for name, value in values.items():
                if isinstance(value, list | dict | set | int | float | str) and (
                    not name.startswith("__")
                ):
                    found[owner + name] = _pickled(value)
    return found


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # what cannot be pickled is no plain data
        return b""
