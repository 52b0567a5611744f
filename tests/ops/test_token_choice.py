"""Tokens chosen by covariance: closed forms, and the same choice however rows are dealt."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.ops.token_choice import choose_largest, covariances, share_of, token_keys

seeds = st.integers(0, 10**6)
few = settings(max_examples=20)


def rows(seed: int, count: int = 5, length: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Draw scores with ties, keys and candidates, (B, T)."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (count, length), generator=draw).double()
    keys = torch.randperm(count * length, generator=draw).view(count, length) - 9
    return scores, keys, torch.rand(count, length, generator=draw) < 0.6


def test_the_covariance_is_the_product_of_two_distances_from_the_mean() -> None:
    log_probs = torch.tensor([[-1.0, -3.0], [-2.0, 99.0]])
    advantages = torch.tensor([[2.0, -1.0], [2.0, 99.0]])
    mask = torch.tensor([[True, True], [True, False]])
    found = covariances(log_probs, advantages, mask)
    assert found.tolist() == [[1.0 * 1.0, -1.0 * -2.0], [0.0 * 1.0, 0.0]]


@given(seeds)
@few
def test_its_mean_is_the_covariance(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    log_probs, advantages = torch.randn(2, 4, 6, generator=draw, dtype=torch.float64)
    every = torch.ones(4, 6, dtype=torch.bool)
    both = torch.stack([log_probs.flatten(), advantages.flatten()])
    expected = torch.cov(both, correction=0)[0, 1]
    torch.testing.assert_close(covariances(log_probs, advantages, every).mean(), expected)


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(100, 0.29, 29), (100, 0.0, 0), (0, 0.5, 0), (3, 2e-4, 1), (3, 1.0, 3), (10_000, 2e-4, 2)],
)
def test_a_share_is_rounded_down_but_at_least_one_token(
    count: int, share: float, expected: int
) -> None:
    assert share_of(count, share) == expected


@given(seeds, st.integers(0, 40))
@few
def test_the_largest_candidates_are_chosen_and_keys_break_ties(seed: int, count: int) -> None:
    scores, keys, candidates = rows(seed)
    found = choose_largest(scores, keys, candidates, count)
    ranked = sorted(zip(scores[candidates].tolist(), keys[candidates].tolist(), strict=True))
    expected = set(ranked[::-1][:count])
    assert set(zip(scores[found].tolist(), keys[found].tolist(), strict=True)) == expected


@given(seeds, st.integers(0, 40), st.integers(0, 5))
@few
def test_ranks_choose_what_one_rank_would(seed: int, count: int, cut: int) -> None:
    """Each rank gathers the best of all; one of them may have no rows."""
    scores, keys, candidates = rows(seed)
    whole = choose_largest(scores, keys, candidates, count)
    parts = [slice(None, cut), slice(cut, None)]
    sent: list[list[Tensor]] = []
    for part in parts:
        own: list[Tensor] = []
        choose_largest(scores[part], keys[part], candidates[part], count, _kept(own))
        sent.append(own)
    assert all(len(own[0]) <= count for own in sent), "no rank sends more than could be chosen"
    found = []
    for part in parts:
        answers = iter(zip(*sent, strict=True))
        found.append(
            choose_largest(
                scores[part],
                keys[part],
                candidates[part],
                count,
                lambda _, answers=answers: list(next(answers)),  # type: ignore[misc]
            )
        )
    assert torch.equal(torch.cat(found), whole)


def _kept(own: list[Tensor]):  # type: ignore[no-untyped-def]
    def gather(tensor: Tensor) -> list[Tensor]:
        own.append(tensor)
        return [tensor]

    return gather


def ids(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw trajectory ids, sequence numbers, tokens and their mask."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (6,), generator=draw)
    words = torch.randint(0, 5, (6, 8), generator=draw)
    return (
        torch.tensor([0, 0, 4096, 4097, 4097, 8192]),
        torch.tensor([0, 1, 0, 0, 1, 0]),
        words,
        torch.arange(8)[None] < lengths[:, None],
    )


@given(seeds)
@few
def test_keys_depend_neither_on_order_nor_on_padding(seed: int) -> None:
    drawn = ids(seed)
    keys = token_keys(*drawn)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(token_keys(*(each[order] for each in drawn)), keys[order])
    wider = torch.nn.functional.pad(drawn[2], (0, 3), value=77)
    mask = torch.nn.functional.pad(drawn[3], (0, 3))
    assert torch.equal(token_keys(drawn[0], drawn[1], wider, mask)[:, :8], keys)
    assert len(set(keys.flatten().tolist())) == keys.numel()


def test_other_tokens_give_another_order() -> None:
    trajectory, sequence, words, mask = ids(0)
    one, other = (token_keys(trajectory, sequence, each, mask) for each in (words, words + 1))
    assert not torch.equal(one.flatten().argsort(), other.flatten().argsort())


def test_equal_scores_draw_uniformly() -> None:
    """Of 64 tokens 16 are drawn 400 times; each falls within 5 standard deviations of 100."""
    counts = torch.zeros(8, 8)
    every, zeros = torch.ones(8, 8, dtype=torch.bool), torch.zeros(8, 8)
    for draw in range(400):
        words = torch.full((8, 8), draw)
        keys = token_keys(torch.arange(8), torch.zeros(8, dtype=torch.long), words, every)
        counts += choose_largest(zeros, keys, every, 16)
    assert int(counts.sum()) == 400 * 16
    assert float((counts - 100).abs().max()) < 5 * (400 * 0.25 * 0.75) ** 0.5
