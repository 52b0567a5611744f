"""``GymText``: any environment with gymnasium's ``reset`` and ``step`` and actions in words."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from ragen_pl.envs.adapters.global_random import GlobalRandom
from ragen_pl.envs.base import MAX_TEXT_LENGTH, one_of
from ragen_pl.envs.pieces import SampledPieces, random_action
from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.splits import Split, enter_split

_VERSION = re.compile(r"-v\d+$")
"""The end of most names that gymnasium knows, and of no class or function."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
_SAMPLED = 60
"""Episodes that the vocabulary is taken from."""


class GymText(ReplayState):
    """An environment of another package whose actions are texts, or numbers with names.

    It must have ``reset(seed=...)``, which returns an observation and an info, and ``step``, which
    returns gymnasium's five values: gymnasium's own environments, GEM's, or your own. Its episodes
    must follow from the seed, since states are restored by playing them again. An observation that
    is no text is shown as Python writes it.

    The seed decides the initial state. ``noise_seed`` decides what is random later if the
    environment draws from gymnasium's ``np_random`` or, with ``global_random``, from the global
    generators; otherwise the seed decides that, too, and the members of a group meet the same.

    Args:
        make: What makes the environment: the dotted path of a class or function, or a name that
            ``gymnasium.make`` knows.
        arguments: Arguments to make it with.
        instruction: The task in words.
        actions: Names of the actions; null for free text. If the environment's actions are numbers,
            the first name stands for its first action.
        success_key: Entry of ``info`` that says whether a terminated episode is a success; null
            goes by its last reward.
        success_reward: Least last reward of a success, if ``success_key`` is null.
        global_random: Whether the environment seeds or reads Python's or numpy's global generators,
            as GEM's do; it then gets states of its own, and its steps wait for each other.
        split: ``train`` or ``eval`` for disjoint first observations; ``all`` for tasks with too
            few.
        max_actions: Maximum actions per trajectory.
    """

    instruction = ""

    def __init__(  # noqa: PLR0913 (one argument per key)
        self,
        make: str,
        instruction: str,
        arguments: dict[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        success_key: str | None = None,
        success_reward: float = 1.0,
        global_random: bool = False,
        split: Split = "train",
        max_actions: int = 20,
    ) -> None:
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        self.name = re.sub(r"\W+", "_", make.rpartition(".")[2] or make).lower()
        self.instruction, self.max_actions = instruction, max_actions
        self.actions = None if actions is None else tuple(actions)
        self.success_key, self.success_reward = success_key, success_reward
        self.split = one_of("split", split, Split)
        self._random = GlobalRandom(0) if global_random else None
        with self._own_random():
            self.wrapped: Any = _maker(make)(**(arguments or {}))
            """The environment itself, which an expert in a subclass may look into."""
        self._numbers = _numbers(self.wrapped, self.actions)
        self._text = ""
        self._info: Mapping[str, Any] = {}
        self._pieces = SampledPieces()
        self._ask(0)

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Reset the environment with the seed."""
        enter_split(seed, self.split, self._ask)
        inner = getattr(self.wrapped, "unwrapped", self.wrapped)
        if isinstance(inner, gymnasium.Env):
            inner.np_random = np.random.default_rng([seed, noise_seed])
        if self._random is not None:
            self._random.seed(seed, noise_seed)
        return {"difficulty": str(self._info.get("difficulty", ""))}

    def _ask(self, seed: int) -> str:
        if self._random is not None:
            self._random.seed(seed)
        with self._own_random():
            observation, self._info = self.wrapped.reset(seed=seed)
        self._text = _text_of(observation)
        return self._text

    def _own_random(self) -> AbstractContextManager[None]:
        return nullcontext() if self._random is None else self._random.installed()

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Take an action, by its number if it has one."""
        given = action if self._numbers is None else self._numbers[action]
        with self._own_random():
            observation, reward, terminated, truncated, info = self.wrapped.step(given)
        self._text = _text_of(observation)
        if self.success_key is None:
            succeeds = float(reward) >= self.success_reward
        else:
            succeeds = bool(info.get(self.success_key, False))
        success = bool(terminated) and succeeds
        return float(reward), bool(terminated), bool(truncated), {"success": success}

    def render_text(self) -> str:
        """Return the last observation."""
        return self._text

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled episodes; of first observations if actions are free."""
        choose = None if self.actions is None else random_action
        yield from self._pieces.of(self, _SAMPLED, choose)


def _maker(path: str) -> Callable[..., Any]:
    """Return what makes the environment.

    Raises:
        ValueError: if nothing of this name can be imported or is registered.
    """
    if path in gymnasium.registry or "." not in path or _VERSION.search(path):
        return partial(_made_by_gymnasium, path)
    module, _, name = path.rpartition(".")
    try:
        made: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"make: {path!r} is neither a name that gymnasium knows nor the path of a class or "
            f"function that can be imported: {error}"
        ) from error
    return made


def _made_by_gymnasium(name: str, **arguments: Any) -> Any:
    """Make an environment by the name that gymnasium knows.

    Raises:
        ValueError: if it knows none, or lacks a package for it.
    """
    try:
        return gymnasium.make(name, disable_env_checker=True, **arguments)
    except gymnasium.error.Error as error:
        raise ValueError(f"make: gymnasium cannot make {name!r}: {error}") from error


def _numbers(env: Any, actions: Sequence[str] | None) -> dict[str, int] | None:
    """Map the names of actions to numbers; None if the environment takes texts.

    Raises:
        ValueError: if the numbers and names do not match.
    """
    space = getattr(env, "action_space", None)
    if not isinstance(space, gymnasium.spaces.Discrete):
        return None
    if actions is None or len(actions) != space.n:
        raise ValueError(
            f"actions: {None if actions is None else list(actions)} must name the environment's "
            f"{space.n} actions, in the order of their numbers"
        )
    return {name: int(space.start) + place for place, name in enumerate(actions)}


def _text_of(observation: Any) -> str:
    """Return an observation as text.

    Raises:
        ValueError: if it has no readable form.
    """
    text = observation if isinstance(observation, str) else str(observation)
    if _ADDRESS.search(text):
        raise ValueError(
            f"GymText: an observation is {text[:80]}, which has no text: wrap the environment so "
            "that observations are texts"
        )
    return text[:MAX_TEXT_LENGTH]
