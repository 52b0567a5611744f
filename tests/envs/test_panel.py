"""The choice of a panel's starts where some cannot be had."""

from __future__ import annotations

from typing import Any

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.panel import panel_seeds


class ShakyBandit(Bandit):
    """A bandit that fails to start at every third seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        if (seed or 0) % 3 == 2:
            raise ConnectionError("the server is away")
        return super().reset(seed=seed, options=options)


def test_a_start_that_fails_keeps_its_seed_and_takes_nobody_elses_place() -> None:
    seeds = panel_seeds(ShakyBandit(), 12)
    assert [seed for seed in seeds if seed % 3 == 2] == [2, 5, 8, 11]
