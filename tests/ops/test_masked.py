"""Moments over ranks: as over one, in few reductions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from ragen_pl.ops.masked import Reduce, explained_variance, masked_mean, whiten

GENERATOR = torch.Generator().manual_seed(0)
VALUES = torch.randn(4, 9, generator=GENERATOR) + 3.0
OTHERS = VALUES + 0.5 * torch.randn(4, 9, generator=GENERATOR)
MASK = torch.rand(4, 9, generator=GENERATOR) < 0.7


class Ranks:
    """Two ranks in threads, whose reductions meet, and are counted."""

    def __init__(self) -> None:
        self.meeting, self.counts = threading.Barrier(2), [0, 0]
        self.parts: list[Tensor | None] = [None, None]

    def reduce_of(self, rank: int) -> Reduce:
        def reduce(part: Tensor) -> Tensor:
            self.counts[rank] += 1
            self.parts[rank] = part
            self.meeting.wait(20)
            one, other = self.parts
            assert one is not None
            assert other is not None
            total = one + other
            self.meeting.wait(20)
            return total

        return reduce

    def run(self, call: Callable[[slice, Reduce], Tensor]) -> list[Tensor]:
        """Call a function on each rank with its rows, of which one has more."""
        shares = (slice(0, 1), slice(1, 4))
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(call, rows, self.reduce_of(rank)) for rank, rows in enumerate(shares)
            ]
            return [job.result() for job in jobs]


def test_whitening_takes_two_reductions() -> None:
    ranks = Ranks()
    parts = ranks.run(lambda rows, reduce: whiten(VALUES[rows], MASK[rows], reduce))
    assert ranks.counts == [2, 2]
    marked = VALUES[MASK].double()
    wanted = torch.where(MASK, (VALUES.double() - marked.mean()) / marked.std(), 0.0)
    torch.testing.assert_close(torch.cat(parts).double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat(parts), whiten(VALUES, MASK), rtol=1e-6, atol=1e-6)


def test_explained_variance_takes_two_reductions() -> None:
    ranks = Ranks()
    one, other = ranks.run(
        lambda rows, reduce: explained_variance(OTHERS[rows], VALUES[rows], MASK[rows], reduce)
    )
    assert ranks.counts == [2, 2]
    returns, residuals = VALUES[MASK].double(), (VALUES - OTHERS)[MASK].double()
    assert float(one) == float(other) == pytest.approx(float(1 - residuals.var() / returns.var()))


def test_a_mean_takes_one_reduction() -> None:
    ranks = Ranks()
    one, other = ranks.run(lambda rows, reduce: masked_mean(VALUES[rows], MASK[rows], reduce))
    assert ranks.counts == [1, 1]
    assert float(one) == float(other) == pytest.approx(float(VALUES[MASK].double().mean()))


def test_a_small_variance_beside_a_large_mean_keeps_its_digits() -> None:
    values = 1000.0 + VALUES / 100
    white = whiten(values, MASK)
    marked = values[MASK].double()
    torch.testing.assert_close(
        white[MASK].double(), (marked - marked.mean()) / marked.std(), rtol=1e-2, atol=1e-2
    )


def test_what_is_not_marked_may_be_anything() -> None:
    spoiled = torch.where(MASK, VALUES, torch.nan)
    assert whiten(spoiled, MASK).equal(whiten(VALUES, MASK))
    assert not bool(whiten(VALUES, torch.zeros_like(MASK)).any())
