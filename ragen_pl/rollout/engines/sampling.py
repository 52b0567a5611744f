"""Sampling of tokens from logits, with noise that depends on the row's identity alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from ragen_pl.rollout.engines.base import noise_key
from ragen_pl.types import Completion, Request, Sampling


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The sampled tokens of one call, with log-probs, entropies and, from a policy with a value
    head, values, each (rows, max new tokens), and the number of tokens per row, (rows,).

    The arrays are numpy's, whose operations on a few numbers cost a tenth of a tensor's.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    entropies: np.ndarray
    counts: np.ndarray
    values: np.ndarray | None = None

    @classmethod
    def empty(cls, rows: int, max_new_tokens: int, *, with_values: bool = False) -> SampledTokens:
        """Return arrays that hold no sampled token yet."""
        shape = rows, max_new_tokens
        log_probs, entropies = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        values = np.zeros(shape, np.float32) if with_values else None
        tokens, counts = np.zeros(shape, np.int64), np.zeros(rows, np.int64)
        return cls(tokens, log_probs, entropies, counts, values)

    def add(self, rows: np.ndarray, step: int, found: np.ndarray) -> np.ndarray:
        """Add one step of some rows: tokens, log-probs, entropies and any values, (3 or 4, n);
        return the tokens."""
        tokens: np.ndarray = found[0].astype(np.int64)
        self.tokens[rows, step] = tokens
        self.log_probs[rows, step] = found[1]
        self.entropies[rows, step] = found[2]
        if self.values is not None:
            self.values[rows, step] = found[3]
        self.counts[rows] = step + 1
        return tokens

    def completions(self, stop_id: int) -> list[Completion]:
        """Return one completion per row."""
        return [
            Completion(
                tuple(tokens[:count]),
                tuple(log_probs[:count]),
                tuple(entropies[:count]),
                stopped=tokens[count - 1] == stop_id,
                values=None if values is None else tuple(values[:count]),
            )
            for tokens, log_probs, entropies, count, values in zip(
                self.tokens.tolist(),
                self.log_probs.tolist(),
                self.entropies.tolist(),
                self.counts.tolist(),
                repeat(None, len(self.counts)) if self.values is None else self.values.tolist(),
                strict=True,
            )
        ]


def uniform_noise(seed: int, request: Request, sampling: Sampling) -> np.ndarray:
    """Return a uniform number per token of a response (see ``noise_key``)."""
    bits = np.random.Philox(np.random.SeedSequence(noise_key(seed, request)))
    return np.random.Generator(bits).random(sampling.max_new_tokens, dtype=np.float32)


def sample_tokens(
    logits: Tensor, noise: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    Args:
        logits: (n, V).
        noise: (n,) uniform in [0, 1).
        temperature: Temperature; 0 takes the most likely token.

    Returns:
        Tokens, their log-probs and the entropies of the distributions, each (n,); at temperature
        0 log-probs and entropies are those at temperature 1.
    """
    if temperature not in (0, 1):
        logits = logits / temperature
    log_p = torch.log_softmax(logits, dim=-1)
    p = log_p.exp()
    if temperature == 0:
        tokens = log_p.argmax(-1)
    else:
        cumulative = p.cumsum(-1)
        target = noise[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
        tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, log_p.gather(-1, tokens[:, None])[:, 0], -(p * log_p).sum(-1)
