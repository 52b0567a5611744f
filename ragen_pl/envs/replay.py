"""``ReplayState``, which gives an environment of any deterministic package a state to restore."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.base import TextEnv, hash_without, refuse_after_end, resolve_seed


class ReplayState(TextEnv):
    """An environment whose state is its history: the seed, the noise seed and the moves so far.

    A subclass implements ``begin`` and ``play`` instead of ``reset`` and ``step``. Both must be
    deterministic: equal seeds and moves lead to equal observations. ``set_state`` begins again and
    plays the moves, so it takes as long as they did.

    The noise seed belongs to the state from the first move on: before it nothing random has
    happened, and the members of a group are in equal states. So a copy in a later state has the
    noise of the original to come, and a teacher that tries ways on in copies knows its luck.
    """

    _seed = 0
    _noise_seed = 0
    _moves: tuple[str, ...] = ()
    _has_ended = False

    @abstractmethod
    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Begin an episode and return the ``info`` of the reset.

        ``seed`` alone decides the initial state, ``noise_seed`` everything random after it.
        """

    @abstractmethod
    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Take an action and return its reward, terminated, truncated and ``info``.

        It is called while the episode goes on only.
        """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin the episode that the seed decides."""
        seed = resolve_seed(self, seed)
        noise_seed = int((options or {}).get("noise_seed", 0))
        return self._begin(seed, noise_seed)

    def _begin(self, seed: int, noise_seed: int) -> tuple[str, dict[str, Any]]:
        self._seed, self._noise_seed = seed, noise_seed
        self._moves, self._has_ended = (), False
        info = self.begin(seed, noise_seed)
        return self.render_text(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; the last one that ``max_actions`` allows truncates the episode."""
        refuse_after_end(self, self._has_ended)
        reward, terminated, truncated, info = self.play(action)
        self._moves = (*self._moves, action)  # not where it was refused
        truncated = not terminated and (truncated or len(self._moves) >= self.max_actions)
        self._has_ended = terminated or truncated
        return self.render_text(), reward, terminated, truncated, info

    @property
    def moves(self) -> tuple[str, ...]:
        """The actions since the reset."""
        return self._moves

    def get_state(self) -> dict[str, Any]:
        """Return the seed, the noise seed once it matters, and the moves."""
        noise_seed = self._noise_seed if self._moves else None
        return {"seed": self._seed, "noise_seed": noise_seed, "moves": list(self._moves)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Play what ``get_state`` returned again; a state without moves keeps the noise seed."""
        noise_seed = state["noise_seed"]
        self._begin(state["seed"], self._noise_seed if noise_seed is None else noise_seed)
        for move in state["moves"]:
            self.step(move)

    def anchor_key(self) -> str:
        """Return a key of what the agent sees: different moves may lead to equal states."""
        return hash_without({"instruction": self.instruction, "text": self.render_text()})

    def start_key(self) -> str:
        """Return a key of the task's text: several seeds may give the same task.

        A subclass whose tasks differ in what the text hides adds that to the key.
        """
        return self.anchor_key()
