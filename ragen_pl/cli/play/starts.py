"""The initial states that ``play`` begins from: by seed, or those of an evaluation set."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_pl.cli.given_env import env_of_data
from ragen_pl.envs.base import TextEnv
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationSet


@dataclass(frozen=True, slots=True)
class Start:
    """One initial state."""

    env: TextEnv
    seed: int
    group_id: int
    iteration: int
    """With ``group_id``, the identity that seeds the noise."""
    name: str


class Starts:
    """Initial states by number.

    Those of an evaluation set are the ones that every evaluation plays, with the same noise;
    others are by seed, in the environment to train in.

    Args:
        data: The configured data module.
        eval_set: Name of an evaluation set, or None.
        temperature: Sampling temperature, which seeds an evaluation's noise, too.

    Raises:
        ConfigError: when there is no such evaluation set, or a mixture and no set.
    """

    def __init__(self, data: RolloutDataModule, eval_set: str | None, temperature: float) -> None:
        self._data, self._name, self._temperature = data, eval_set, temperature
        self.env = env_of_data(data, eval_set, "play")
        """The environment that is played."""

    def at(self, number: int) -> Start:
        """Return a start: by its seed, or by its place in the evaluation set, from 0.

        Raises:
            ConfigError: when the evaluation set cannot have that many starts.
        """
        if self._name is None:
            return Start(self.env, number, number, 0, f"seed {number}")
        index = list(self._data.eval_sets).index(self._name)
        chosen = EvaluationSet.build(self._name, self.env, index, number + 1)
        seed, iteration = chosen.seeds[number], chosen.noise_iteration(self._temperature)
        return Start(self.env, seed, number, iteration, f"{self._name} {number} (seed {seed})")
