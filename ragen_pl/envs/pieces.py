"""Pieces of text that deserve one token each, found in sampled texts of an environment."""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ragen_pl.envs.base import TextEnv

_WORD = re.compile(r"[ \t]{2,}\d+|[ \t]*[^\s\d]+|\n")
"""Numbers are pieces only in columns: elsewhere they are written with the tokens of all numbers, so
that 7 is the same token in a question and in its answer."""
_LINE = re.compile(r"[^\n]+\n?")
_RARE = 0.05
"""Share of the texts that must contain a piece."""
_MOST = 400


def frequent_pieces(texts: Iterable[str]) -> list[str]:
    """Return lines and words that occur in one text of twenty or more, at most 400.

    Those that would save the most tokens come first; everything else is left to characters.
    """
    samples = list(texts)
    counts: Counter[str] = Counter()
    for text in samples:
        counts.update({*_LINE.findall(text), *_WORD.findall(text)})
    least = max(2.0, _RARE * len(samples))
    saved = {
        piece: (len(piece) - 1) * count
        for piece, count in counts.items()
        if count >= least and len(piece) > 1
    }
    return sorted(saved, key=lambda piece: (-saved[piece], piece))[:_MOST]


Choose = Callable[[TextEnv, random.Random], str]
"""Function that chooses an action."""


class SampledPieces:
    """The frequent pieces of an environment's sampled texts, found when they are first asked for
    and kept."""

    def __init__(self) -> None:
        self._found: list[str] | None = None

    def of(self, env: TextEnv, episodes: int, choose: Choose | None = None) -> list[str]:
        """Return the pieces; the arguments are those of ``sampled_texts``."""
        if self._found is None:
            self._found = frequent_pieces(sampled_texts(env, episodes, choose))
        return self._found


def random_action(env: TextEnv, rng: random.Random) -> str:
    """Choose one of an environment's named actions."""
    assert env.actions is not None
    return rng.choice(env.actions)


def sampled_texts(env: TextEnv, episodes: int, choose: Choose | None = None) -> Iterator[str]:
    """Yield the texts of short episodes, which seeds from 0 on decide.

    Args:
        env: The environment, which is not changed.
        episodes: Number of episodes.
        choose: Chooses the actions; None yields only what is seen before the first.
    """
    env = copy.deepcopy(env)
    for seed in range(episodes):
        text, _ = env.reset(seed=seed, options={"noise_seed": seed})
        yield from (env.instruction, text)
        if choose is None:
            continue
        rng, has_ended, moves = random.Random(seed), False, 0
        while not has_ended and moves < env.max_actions:
            text, _, terminated, truncated, _ = env.step(choose(env, rng))
            yield text
            has_ended, moves = terminated or truncated, moves + 1
