"""A small agent of Stable-Baselines3, which learns an environment by its features.

The package (MIT) is imported only here, when an agent is trained.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch

from ragen_pl.envs.arrays import Features
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import EnvError
from ragen_pl.envs.feature_env import FeatureEnv
from ragen_pl.envs.packages import load
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.threads import torch_threads

AgentName = Literal["DQN", "PPO"]
NUM_ENVS = 16
"""Copies of the environment that an agent plays in turn."""
_SUCCESS_WINDOW = 1000
"""Episodes, the last ones, that an agent's success is told of."""
_REPORTS = 20
"""Times that training tells how far it is."""

DEFAULTS: Mapping[AgentName, Mapping[str, Any]] = MappingProxyType(
    {
        "DQN": {
            "learning_rate": 1e-3,
            "gamma": 0.9,
            "n_steps": 3,
            "batch_size": 256,
            "buffer_size": 100_000,
            "train_freq": 1,
            "gradient_steps": 4,
            "target_update_interval": 500,
            "exploration_fraction": 0.3,
        },
        "PPO": {
            "learning_rate": 5e-4,
            "gamma": 0.95,
            "n_steps": 64,
            "batch_size": 256,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
    }
)
"""Arguments of the package's agents, where they differ from its own."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a small agent is trained."""

    agent: AgentName
    steps: int
    """Environment steps, of all copies together."""
    layers: tuple[int, ...]
    """Widths of the network's hidden layers."""
    options: Mapping[str, Any]
    """Arguments of the package's agent, beside ``DEFAULTS``."""
    seed: int


class SmallAgent:
    """A trained agent.

    Args:
        model: The package's agent.
        success: Its success in the last episodes of its training, in which it still explored.
    """

    def __init__(self, model: Any, success: float) -> None:
        self._model, self.success = model, success

    def choose(self, states: Sequence[Features]) -> list[int]:
        """Return the number of the best action in each state."""
        numbers, _ = self._model.predict(np.stack(states), deterministic=True)
        return [int(number) for number in numbers]


def train_agent(
    env: TextEnv, seeds: Sequence[int], training: Training, report: Callable[[str], None]
) -> SmallAgent:
    """Train an agent on copies of an environment; call it within ``on_its_own``.

    Args:
        env: The environment, which has features.
        seeds: Seeds of the starts to play; no other start is played.
        training: The agent and its budget.
        report: Function that is told now and then how far the training is.

    Raises:
        ConfigError: if the package is missing, refuses an option, or the environment fails at one
            start after another.
    """
    package = load("stable_baselines3", "Explorer", "explorer")
    vectors = load("stable_baselines3.common.vec_env", "Explorer", "explorer")
    logger = load("stable_baselines3.common.logger", "Explorer", "explorer")
    _seed_generators(training.seed)
    progress = _Progress(training.steps, report)
    try:
        copies = vectors.DummyVecEnv([lambda: FeatureEnv(env, seeds)] * NUM_ENVS)
        copies.seed(training.seed)
        copies.action_space.seed(training.seed)
        model = getattr(package, training.agent)(
            "MlpPolicy",
            copies,
            policy_kwargs={"net_arch": list(training.layers)},
            device="cpu",
            **_arguments(training),
        )
        model.set_logger(logger.Logger(folder=None, output_formats=[]))  # else it makes a folder
        model.learn(training.steps, callback=progress)
    except EnvError as error:
        raise ConfigError(f"the explorer cannot play {env.name}: {error}") from error
    except (TypeError, ValueError, AssertionError) as error:
        if not training.options:
            raise
        raise ConfigError(
            f"warm_start.teacher.options is {dict(training.options)}, which {training.agent} of "
            f"stable-baselines3 refuses: {error}"
        ) from error
    return SmallAgent(model, progress.success)


def _arguments(training: Training) -> dict[str, Any]:
    arguments = dict(DEFAULTS[training.agent])
    if training.agent == "DQN":  # a short training must begin to learn sooner
        arguments["learning_starts"] = min(5_000, training.steps // 10)
    return arguments | dict(training.options)


class _Progress:
    """The count of the episodes of a training; the package calls it after every step."""

    def __init__(self, steps: int, report: Callable[[str], None]) -> None:
        self._steps, self._report = steps, report
        self._told = 0
        self._successes: deque[bool] = deque(maxlen=_SUCCESS_WINDOW)

    @property
    def success(self) -> float:
        """Share of the last episodes that succeeded; 0 before any has ended."""
        return sum(self._successes) / max(1, len(self._successes))

    def __call__(self, scope: Mapping[str, Any], _: Mapping[str, Any]) -> bool:
        for has_ended, info in zip(scope["dones"], scope["infos"], strict=True):
            if has_ended:
                self._successes.append(bool(info["success"]))
        done = min(1.0, scope["self"].num_timesteps / self._steps)
        if done * _REPORTS >= self._told + 1:
            self._told = int(done * _REPORTS)
            self._report(f"explorer {done:.0%} of its steps, success {self.success:.2f}")
        return True


def _seed_generators(seed: int) -> None:
    """Seed what the package draws from, and not the generators of an accelerator, as it would."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextmanager
def on_its_own() -> Iterator[None]:
    """Restore the global generators and the number of threads afterwards; within, use one thread,
    with which small networks are fastest and results do not depend on the machine's cores."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        with torch_threads(1):
            yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
