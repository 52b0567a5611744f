"""Requests to a sampler, and its completions scored as the trainer does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.policy import Policy
from ragen_pl.types import Completion, EpisodeId, Request


def requests(members: Sequence[int], turn: int = 0, iteration: int = 5) -> list[Request]:
    """Return requests of unequal length."""
    return [Request((3, *range(10, 12 + m)), EpisodeId(iteration, 0, m), turn) for m in members]


def largest_gap(
    language: LanguageModel,
    asked: Sequence[Request],
    answered: Sequence[Completion],
    temperature: float = 1.0,
) -> float:
    """Return the largest difference between a token's log-prob and the trainer's."""
    policy = Policy(language.model)
    gaps: list[list[float]] = []
    for request, completion in zip(asked, answered, strict=True):
        ids = torch.tensor([[*request.prefix_ids, *completion.token_ids]])
        mask = torch.arange(ids.shape[1])[None] >= len(request.prefix_ids)
        with torch.no_grad():
            log_probs = policy(ids, mask, torch.ones_like(mask), temperature).log_probs
        gaps.append((log_probs[mask] - torch.tensor(completion.log_probs)).abs().tolist())
    return max(chain.from_iterable(gaps))


@contextmanager
def flattened(language: LanguageModel) -> Iterator[None]:
    """Make all tokens about equally likely, the end of a response too."""
    embedding = language.model.get_input_embeddings().weight
    assert isinstance(embedding, torch.Tensor)
    with torch.no_grad():
        embedding.mul_(2**-5)
        yield
        embedding.mul_(2**5)
