"""Seeds of evaluation sets."""

from __future__ import annotations

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.eval_seeds import eval_starts


def eval_seeds(env: TextEnv, size: int) -> list[int]:
    """Return the seeds of ``eval_starts``."""
    return [start.seed for start in eval_starts(env, size)]
