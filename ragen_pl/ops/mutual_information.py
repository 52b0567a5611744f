"""Mutual information between prompts and thoughts, from the log-probs of every pairing.

Entropy alone does not distinguish a policy whose thoughts depend on the prompt from one that
recites varied templates: H(Z) = I(X; Z) + H(Z | X), and template collapse is a high H(Z | X) with I
near 0 (RAGEN-2, arXiv 2604.06268). Dimensions: R thoughts Z, P distinct prompts X. All in nats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

H = TypeVar("H", bound=Hashable)

_FLOOR = -1e4
"""Lower bound of log-probs in the z-score, so that an impossible pairing leaves moments finite."""
_TIE = 1e-6
"""Largest difference of log-probs that counts as a tie in retrieval."""


@dataclass(frozen=True, slots=True)
class Information:
    """The estimates, in nats; all are NaN if there are no thoughts."""

    mutual_information: float
    """I(X; Z): 0 for a template, at most H(X), which is log P for equally frequent prompts."""
    z_score: float
    """``permutation_z_score`` of the thoughts with their own prompts."""
    conditional_entropy: float
    """H(Z | X)."""
    marginal_entropy: float
    """H(Z) = I + H(Z | X)."""
    retrieval: float
    """Share of thoughts that are likeliest under their own prompt."""
    chance: float
    """Retrieval of a uniform guess: 1 / P."""

    @property
    def retrieval_above_chance(self) -> float:
        return self.retrieval - self.chance


def estimate_information(
    log_probs: Tensor, own: Tensor, *, counts: Tensor | None = None, lengths: Tensor | None = None
) -> Information:
    """Estimate I(X; Z) and its companions from thoughts scored under every prompt (RAGEN-2).

    A thought's matched log-prob is log p(z | x_own), its marginal one log Σ_j q_j p(z | x_j), where
    q_j is the share of thoughts that belong to prompt j (1/P in RAGEN-2, which has equally many for
    each). A prompt without thoughts is left out.

    Args:
        log_probs: (R, P) log p(thought | prompt), summed over the thought's tokens.
        own: (R,) int: the prompt each thought is a response to.
        counts: (R,) occurrences of each pair of thought and own prompt, by default 1; rows with 0
            are ignored.
        lengths: (R,) tokens of each thought. When given, all but retrieval is per token: each
            thought's terms are divided by its length after the sum over prompts (the paper's
            MI-Est, whose code divides before it; without lengths, its MI-Seq-Est).
    """
    counts = torch.ones(len(own)) if counts is None else counts
    counts = counts.to(log_probs.device, torch.float64)
    seen = counts > 0
    if not bool(seen.any()):
        return Information(*[math.nan] * 6)
    scores, own, counts = log_probs[seen].double(), own[seen], counts[seen]
    prompts, own = torch.unique(own, return_inverse=True)
    scores = scores[:, prompts]
    scale = 1.0 / lengths[seen].double() if lengths is not None else torch.ones_like(counts)
    shares = torch.zeros(len(prompts), dtype=torch.float64, device=scores.device)
    shares = shares.index_add(0, own, counts) / counts.sum()
    matched = scores.gather(1, own[:, None])[:, 0]
    marginal = torch.logsumexp(scores + shares.log(), dim=1)
    weights = scale * counts / counts.sum()
    return Information(
        mutual_information=float((weights * (matched - marginal)).sum()),
        z_score=permutation_z_score(scores * scale[:, None], own, counts),
        conditional_entropy=float(-(weights * matched).sum()),
        marginal_entropy=float(-(weights * marginal).sum()),
        retrieval=float((counts * _retrieved(scores, own)).sum() / counts.sum()),
        chance=1.0 / len(prompts),
    )


def _retrieved(scores: Tensor, own: Tensor) -> Tensor:
    """Return (R,): 1/k if the own prompt is one of the k likeliest, which tie; else 0."""
    best = scores >= scores.max(dim=1, keepdim=True).values - _TIE
    return best.gather(1, own[:, None])[:, 0].double() / best.sum(1)


def permutation_z_score(scores: Tensor, own: Tensor, counts: Tensor) -> float:
    """Return by how many standard deviations the matched log-prob exceeds that of random pairings.

    The null hypothesis assigns the own prompts to the thoughts at random, each as often as it
    occurs. Mean and variance of Σ_i a_{i, π(i)} over all permutations π have closed forms
    (Hoeffding 1951): n·ā and Σ d²/(n − 1) with the doubly centered d, so no permutation is sampled.
    A prompt that makes every thought likelier has no effect. RAGEN-2's own score divides by the
    standard deviation of the marginal log-probs instead, and explodes when that is near 0.

    Args:
        scores: (R, P) log p(thought | prompt).
        own: (R,) int: the prompt each thought is a response to.
        counts: (R,) float: copies of each row.

    Returns:
        The score; 0 if all pairings are equally likely, or there is a single row.
    """
    scores = scores.clamp(min=_FLOOR)
    total = counts.sum()
    prompt_counts = torch.zeros(scores.shape[1], dtype=scores.dtype, device=scores.device)
    prompt_counts = prompt_counts.index_add(0, own, counts)
    row_mean = scores @ prompt_counts / total
    column_mean = counts @ scores / total
    mean = counts @ row_mean / total
    centered = scores - row_mean[:, None] - column_mean + mean
    squares = counts @ centered.square() @ prompt_counts
    deviation = float(torch.sqrt(squares / (total - 1).clamp(min=1)))
    if deviation < 1e-9:
        return 0.0
    matched = scores.gather(1, own[:, None])[:, 0]
    return float(counts @ matched - total * mean) / deviation


def merge_duplicates(items: Sequence[H]) -> tuple[list[H], list[int]]:
    """Return the distinct items in order of appearance, and each item's index among them."""
    distinct = {item: index for index, item in enumerate(dict.fromkeys(items))}
    return list(distinct), [distinct[item] for item in items]


def count_pairs(first: Sequence[int], second: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Merge equal pairs: return the two members of each distinct pair and how often it occurs."""
    pairs = Counter(zip(first, second, strict=True))
    left, right = zip(*pairs, strict=True) if pairs else ((), ())
    return torch.tensor(left), torch.tensor(right), torch.tensor(list(pairs.values()))
