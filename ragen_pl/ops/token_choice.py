"""Choice of a share of the tokens of an optimizer batch, over all ranks.

Clip-Cov and KL-Cov (2505.22617) treat a few tokens apart: those for which log-probability and
advantage deviate from their means in the same direction, because they take the policy's entropy
down. They are chosen among all tokens of the optimizer batch. For this, ranks exchange their best
candidates, and ties are broken by keys that do not depend on how rows are dealt to ranks and
micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ragen_pl.ops.masked import Reduce, local, masked_mean

Gather = Callable[[Tensor], list[Tensor]]
"""The tensors of all ranks, in rank order."""

_SLACK = 1e-9
"""Relative slack of a share: 0.29 · 100 is 28.999…"""


def alone(tensor: Tensor) -> list[Tensor]:
    """Return the tensor of a single rank."""
    return [tensor]


def covariances(
    log_probs: Tensor, advantages: Tensor, mask: Tensor, reduce: Reduce = local
) -> Tensor:
    """Return (log π − mean of log π)(A − mean of A) per token, (B, T) float64; 0 off the mask.

    The centered product of 2505.22617, whose mean is the covariance that takes entropy down.

    Args:
        log_probs: (B, T), of the sampled tokens.
        advantages: (B, T).
        mask: (B, T) bool, the tokens that count in the means.
        reduce: Sum over all ranks.
    """
    centered = []
    for values in (log_probs.detach().double(), advantages.double()):
        centered.append(values - masked_mean(values, mask, reduce))
    return torch.where(mask, centered[0] * centered[1], 0.0)


def share_of(count: int, share: float) -> int:
    """Return ⌊share · count⌋, but at least 1 where both are above 0."""
    return 0 if share == 0 or count == 0 else max(1, int(share * count * (1 + _SLACK)))


def token_keys(
    trajectory_ids: Tensor, sequence_index: Tensor, input_ids: Tensor, attention_mask: Tensor
) -> Tensor:
    """Hash every token's place in its trajectory, and the row's tokens; (B, T) int64.

    The order of the keys is that of a random shuffle, another one for other responses, but the same
    for every order of the rows, amount of padding and number of ranks, and after a resume.

    Args:
        trajectory_ids: (B,) int, unique over all ranks.
        sequence_index: (B,) int, the row's number in its trajectory.
        input_ids: (B, T) int.
        attention_mask: (B, T) bool, false on padding.
    """
    place = torch.arange(input_ids.shape[1], device=input_ids.device)
    words = torch.where(attention_mask, _mixed(_mixed(input_ids) + place), 0).sum(1)
    rows = _mixed(_mixed(_mixed(trajectory_ids) + sequence_index) + words)
    return _mixed(rows[:, None] + place)


def _mixed(values: Tensor) -> Tensor:
    """Mix the bits of integers (the finalizer of SplitMix64, plus its constant); overflow wraps."""
    values = values.long() - 0x61C8864680B583EB
    values = (values ^ _shifted(values, 30)) * -0x40A7B892E31B1A47
    values = (values ^ _shifted(values, 27)) * -0x6B2FB644ECCEEE15
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift right, with zeros from the left."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def choose_largest(
    scores: Tensor, keys: Tensor, candidates: Tensor, count: int, gather: Gather = alone
) -> Tensor:
    """Mark the ``count`` candidates of all ranks with the largest scores, (B, T) bool.

    Of equal scores the larger key wins. All candidates are marked where there are no more. Every
    rank must call it with the same count.

    Args:
        scores: (B, T) float; equal scores everywhere draw uniformly.
        keys: (B, T) int64, different for every token of all ranks.
        candidates: (B, T) bool.
        count: Number of tokens over all ranks.
        gather: Collects the best of each rank.
    """
    chosen = torch.zeros_like(candidates)
    places = candidates.flatten().nonzero()[:, 0]
    own_scores, own_keys = scores.flatten()[places].double(), keys.flatten()[places]
    best = _order(own_scores, own_keys)[:count]
    all_scores = torch.cat(gather(own_scores[best].cpu()))
    all_keys = torch.cat(gather(own_keys[best].cpu()))
    winners = _order(all_scores, all_keys)[:count]
    if not len(winners):
        return chosen
    last_score, last_key = all_scores[winners[-1]].item(), all_keys[winners[-1]].item()
    wins = (own_scores > last_score) | ((own_scores == last_score) & (own_keys >= last_key))
    chosen.view(-1)[places[wins]] = True
    return chosen


def _order(scores: Tensor, keys: Tensor) -> Tensor:
    """Sort by score, then by key, largest first; return indices."""
    by_key = torch.argsort(keys, descending=True)
    return by_key[torch.argsort(scores[by_key], descending=True, stable=True)]
