"""Seeds of a run: which groups of trajectories each iteration collects.

Every seed is a pure function of the position in the run's seed stream, which is saved, so a resumed
run collects the same groups as an uninterrupted one and never repeats a seed. The first collections
of all iterations come first in the stream, then the second ones, and so on: runs with and without
dynamic sampling begin every iteration with the same groups. With a curriculum the groups of the
stream are candidates, some of which are collected.
"""

from __future__ import annotations

from collections.abc import Mapping

from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.config import MAX_GROUPS

SEEDS_PER_RUN = 1 << 32
"""Number of seeds that each run seed has to itself."""
FIRST_DEMONSTRATION = 1 << 31
"""Offset of the demonstrations' seeds within a run, beyond what RL can reach. After them, in the
range of run seed 0, are the seeds of evaluation sets, from ``FIRST_EVAL_SEED`` on, which no run
trains on."""
MAX_COLLECTIONS = FIRST_DEMONSTRATION // MAX_GROUPS
"""Collections per iteration that the stream has room for."""


class SeedStream:
    """The position in the seed stream at which each iteration begins.

    Each iteration takes one position per group of a collection or, with a curriculum, per candidate
    for one. Their number may change when a run is resumed; positions taken before are not reused.
    """

    def __init__(self) -> None:
        self._iteration = self._position = 0
        """Iteration and position at which the current number of groups came into effect."""

    def position(self, iteration: int, num_groups: int) -> int:
        """Return the first position of ``iteration``, which counts from the first RL iteration."""
        return self._position + (iteration - self._iteration) * num_groups

    def state_dict(self, iteration: int, num_groups: int) -> dict[str, int]:
        """Return the position at which the next iteration begins."""
        return {"iteration": iteration, "position": self.position(iteration, num_groups)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a saved position, with any number of groups."""
        self._iteration, self._position = state["iteration"], state["position"]


def group_seeds(run_seed: int, position: int, num_groups: int, collection: int) -> list[GroupSeed]:
    """Return the groups of one collection, over all ranks.

    Args:
        run_seed: Seed of the run.
        position: First position of the iteration in the seed stream.
        num_groups: Groups of one collection, or candidates for it.
        collection: Index of the collection within the iteration, from 0.

    Returns:
        Group ids are unique within the iteration, which makes the sampling noise differ between
        groups; seeds are unique within the run.

    Raises:
        ConfigError: when the run has no more seeds.
    """
    if position + num_groups > MAX_GROUPS:
        raise ConfigError(
            f"data.rollout.num_groups: {num_groups} further starts, those that a curriculum "
            f"chooses from included, are more than the {MAX_GROUPS - position} that are left of a "
            f"run's {MAX_GROUPS}: collect fewer, or end the run here and train its policy in a new "
            "one"
        )
    first = run_seed * SEEDS_PER_RUN + collection * MAX_GROUPS + position
    return [GroupSeed(collection * num_groups + i, first + i) for i in range(num_groups)]
