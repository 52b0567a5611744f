"""``FeatureEnv``, an environment as libraries for small agents know it: arrays in, numbers out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_pl.envs.arrays import Features
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, contract_error, warn_of_env_error
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED

_MOST_TRIES = 20
"""Starts in a row that may fail."""
_NOISE_SEEDS = 1 << 32


class FeatureEnv(gymnasium.Env[Features, np.int64]):
    """A text environment by its features, with its actions by number.

    Every ``reset`` draws one of the given starts, and what the environment's noise is; a seed given
    to ``reset`` seeds what is drawn and is never a start itself. So a library that seeds an
    environment as it likes stays off the starts of evaluation sets. The environment's own ``info``
    is passed on, with ``success`` in that of every step. An environment that fails in mid-episode
    truncates it, with a counted warning.

    Args:
        env: The environment, which is not changed.
        seeds: Seeds of the starts; by default all but those of evaluation sets.

    Raises:
        ValueError: if the environment has no features or no named actions, or if ``seeds`` is
            empty.
        EnvError: if the environment breaks its contract at the first start.
    """

    def __init__(self, env: TextEnv, seeds: Sequence[int] = range(FIRST_EVAL_SEED)) -> None:
        check_features(env)
        if not seeds:
            raise ValueError("seeds: none is given; name the starts to play")
        self._env = CheckedEnv(copy.deepcopy(env))
        self._seeds = seeds
        self._seed = seeds[0]
        self._env.reset(self._seed, 0)
        self._features, self._actions = self._env.features(), self._named()
        self.observation_space = spaces.Box(0.0, 1.0, self._features.shape, np.float32)
        self._num_actions = len(self._actions)
        self.action_space = spaces.Discrete(self._num_actions)
        self._has_ended = True

    def _named(self) -> tuple[str, ...]:
        actions = self._env.actions
        assert actions is not None, f"{self._env.name} lost its actions"
        return actions

    def _seen(self) -> Features:
        """Return the state's features.

        Raises:
            EnvError: if their shape is not that of the first state.
        """
        features, shape = self._env.features(), self.observation_space.shape
        if features.shape != shape:
            must = f"an array of shape {shape}, as in the first state"
            raise contract_error("features", features.shape, must)
        return features

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Features, dict[str, Any]]:
        """Enter a start that is drawn from those given.

        Raises:
            EnvError: if the environment fails at 20 starts in a row.
        """
        super().reset(seed=seed)
        for tried in range(_MOST_TRIES):
            self._seed = self._seeds[int(self.np_random.integers(len(self._seeds)))]
            noise_seed = int(self.np_random.integers(_NOISE_SEEDS))
            try:
                first = self._env.reset(self._seed, noise_seed)
                self._features, self._actions = self._seen(), self._named()
                if len(self._actions) != self._num_actions:
                    must = f"{self._num_actions} actions, as in the first state"
                    raise contract_error("actions", self._actions, must)
            except EnvError as error:
                warn_of_env_error(self._env, self._seed, error)
                if tried == _MOST_TRIES - 1:
                    raise
                continue
            break
        self._has_ended = False
        return self._features.copy(), {"start": self._seed, "difficulty": first.difficulty}

    def step(self, action: np.int64) -> tuple[Features, float, bool, bool, dict[str, Any]]:
        """Take the action of a number."""
        if self._has_ended:
            raise RuntimeError("FeatureEnv.step: the episode has ended; call reset first")
        try:
            outcome = self._env.step(self._actions[int(action)])
            self._features = self._seen()
        except EnvError as error:
            warn_of_env_error(self._env, self._seed, error)
            self._has_ended = True
            return self._features.copy(), 0.0, False, True, {"success": False}
        self._has_ended = outcome.terminated or outcome.truncated
        info = {"success": outcome.success}
        return (
            self._features.copy(),
            outcome.reward,
            outcome.terminated,
            outcome.truncated,
            info,
        )


def check_features(env: TextEnv) -> None:
    """Refuse an environment that an agent without text could not play.

    Raises:
        ValueError: if it has no features or no named actions; the message says what to write.
    """
    if not env.has_features:
        raise ValueError(
            f"{type(env).__name__} has no features, by which an agent that reads no text would see "
            "its states: write TextEnv.features"
        )
    if env.actions is None:
        raise ValueError(
            f"{type(env).__name__} takes free text, of which an agent that reads no text can "
            "choose nothing: name its actions, or take another teacher"
        )
