"""The words of an embedded model that learns one environment."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.prompts import Prompts, common_vocabulary


def vocabulary(prompts: Prompts, env: TextEnv, max_actions_per_turn: int) -> Iterator[str]:
    """Yield the pieces of text that get one token each, as a data module yields them."""
    yield from common_vocabulary(prompts, env, max_actions_per_turn)
    yield from env.vocabulary()
