"""Choose the starts of an evaluation panel."""

from __future__ import annotations

from ragen_pl.envs.base import TextEnv

_STRIDE = 1000
"""A multiple of 20, so a replacement asks for the same stratum as the seed it replaces."""
_MAX_TRIES = 64


def panel_seeds(env: TextEnv, size: int) -> list[int]:
    """Return ``size`` seeds whose starts differ as far as the environment has that many.

    Seed ``i`` is replaced by ``i + 1000 j`` with the least ``j`` that gives a start not seen
    before, under ``start_key``. After 64 tries the repeat stays: a bandit has few starts. A start
    that the environment cannot give keeps its seed: the evaluation says what is wrong with it.
    """
    if size <= 0:
        raise ValueError(f"size: {size} is not positive; a panel needs at least one start")
    seen: set[str] = set()
    seeds = []
    for first in range(size):
        chosen = first
        for seed in range(first, first + _MAX_TRIES * _STRIDE, _STRIDE):
            key = _key_of(env, seed)
            if key is None and seed == first:
                break
            if key is not None and key not in seen:
                seen.add(key)
                chosen = seed
                break
        seeds.append(chosen)
    return seeds


def _key_of(env: TextEnv, seed: int) -> str | None:
    """Return a start's key; None where the environment raises."""
    try:
        env.reset(seed=seed)
        return env.start_key()
    except Exception:  # the boundary to user code: whoever plays this start meets it again
        return None
