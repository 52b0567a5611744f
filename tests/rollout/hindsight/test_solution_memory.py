"""The memory of hindsight imitation: what it keeps, draws, saves and shares among ranks."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace

import pytest
import torch

from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.hindsight import memory as solution_memory
from ragen_pl.rollout.hindsight.memory import SolutionMemory
from ragen_pl.rollout.hindsight.writer import Solution
from ragen_pl.types import HindsightBatch, HindsightFacts, TokenRow
from tests.support.ranks import on_ranks


def solution(number: int, rate: float = 0.5, length: int = 3, rows: int = 1) -> Solution:
    """Return a solution whose tokens are its number."""
    mask = (False,) * (length - 1) + (True,)
    return Solution(0, number, (TokenRow((number,) * length, mask),) * rows, rate, 2, 4)


def drawn(batches: list[HindsightBatch]) -> list[int]:
    """Return the numbers of the solutions in all batches."""
    return [int(row[0]) for batch in batches for row in batch.input_ids]


def test_nothing_is_drawn_before_the_first_solution() -> None:
    memory = SolutionMemory(HindsightImitation(), 0)
    assert memory.batches([], 0) == []
    assert len(memory.batches([solution(1)], 1)) == 4
    assert len(memory.batches([], 2)) == 4, "later iterations live on the memory"


def test_the_oldest_solutions_are_forgotten_first() -> None:
    memory = SolutionMemory(HindsightImitation(memory=3, updates=50, batch_size=3), 0)
    for number in range(5):
        batches = memory.batches([solution(number)], number)
    assert set(drawn(batches)) == {2, 3, 4}
    assert batches[0].facts == HindsightFacts(solutions=1, memory=3, length_ratio=0.5)


def test_a_batch_has_its_share_of_fresh_solutions() -> None:
    memory = SolutionMemory(HindsightImitation(updates=100, batch_size=10, fresh=0.4), 0)
    memory.batches([solution(number) for number in range(200)], 0)
    fresh = [solution(number) for number in range(200, 220)]
    numbers = drawn(memory.batches(fresh, 1))
    share = sum(number >= 200 for number in numbers) / len(numbers)
    assert share == pytest.approx(0.4 + 0.6 * 20 / 220, abs=0.03)


def test_no_solution_is_drilled() -> None:
    memory = SolutionMemory(HindsightImitation(updates=20, batch_size=16, fresh=0.0), 0)
    for batch in memory.batches([solution(number) for number in range(20)], 0):
        assert max(Counter(drawn([batch])).values()) == 1
    few = SolutionMemory(HindsightImitation(updates=1, batch_size=16, fresh=0.0), 0)
    (batch,) = few.batches([solution(1), solution(2)], 0)
    assert sorted(drawn([batch])) == [1, 2]
    few = SolutionMemory(HindsightImitation(updates=50, batch_size=16, fresh=0.5), 0)
    few.batches([solution(number) for number in range(40)], 0)
    for batch in few.batches([solution(99)], 1):
        assert drawn([batch]).count(99) <= 2, "once as fresh, once from the memory"


def test_what_a_rolled_back_policy_found_is_forgotten() -> None:
    memory = SolutionMemory(HindsightImitation(updates=30, batch_size=3), 0)
    for iteration in range(5):
        batches = memory.batches([replace(solution(iteration), iteration=iteration)], iteration)
    memory.forget_since(3)
    assert len(memory) == 3
    assert set(drawn(memory.batches([], 5))) == {0, 1, 2}
    assert set(drawn(batches)) == {0, 1, 2, 3, 4}


def test_hard_solutions_are_drawn_more_often() -> None:
    memory = SolutionMemory(HindsightImitation(updates=400, batch_size=4, fresh=0.0), 0)
    easy = [solution(number, rate=1.0) for number in range(50)]
    hard = [solution(number, rate=0.25) for number in range(50, 100)]
    numbers = drawn(memory.batches([*easy, *hard], 0))
    share = sum(number >= 50 for number in numbers) / len(numbers)
    assert share == pytest.approx(0.95 / (0.95 + 0.2), abs=0.03)


def test_rows_are_padded_and_masked() -> None:
    memory = SolutionMemory(HindsightImitation(updates=1, batch_size=2, fresh=0.0), 0)
    (batch,) = memory.batches([solution(7, length=2), solution(9, length=5)], 0)
    order = batch.input_ids[:, 0].argsort()
    assert batch.input_ids[order].tolist() == [[7, 7, 0, 0, 0], [9, 9, 9, 9, 9]]
    assert batch.attention_mask[order].sum(1).tolist() == [2, 5]
    assert batch.loss_mask[order].nonzero().tolist() == [[0, 1], [1, 4]]


def test_a_restored_memory_goes_on_the_same() -> None:
    config = HindsightImitation(memory=30, batch_size=5)
    memory = SolutionMemory(config, 3)
    memory.batches([solution(n, rate=n / 20, length=n + 1, rows=n % 3 + 1) for n in range(9)], 0)
    stream = io.BytesIO()
    torch.save(memory.state_dict(), stream)
    stream.seek(0)
    other = SolutionMemory(config, 3)
    other.load_state_dict(torch.load(stream, weights_only=True))
    assert other.state_dict()["solutions"] == memory.state_dict()["solutions"]
    for one, two in zip(
        memory.batches([solution(9)], 1), other.batches([solution(9)], 1), strict=True
    ):
        assert torch.equal(one.input_ids, two.input_ids)
        assert torch.equal(one.loss_mask, two.loss_mask)
    empty = SolutionMemory(config, 3)
    empty.load_state_dict(SolutionMemory(config, 3).state_dict())
    assert len(empty) == 0


def test_ranks_share_the_memory_and_deal_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    config = HindsightImitation(updates=3, batch_size=6, memory=12)
    found = [[solution(10 * i + n, length=n % 4 + 2) for n in range(8)] for i in range(3)]
    whole = SolutionMemory(config, 0)
    expected = [whole.batches(found[i], i) for i in range(3)]

    def work(rank: int) -> list[list[HindsightBatch]]:
        memory = SolutionMemory(config, 0)
        return [memory.batches(found[i][rank::2], i) for i in range(3)]

    one, other = on_ranks(2, work, monkeypatch, solution_memory)
    for i in range(3):
        for mine, yours, all_rows in zip(one[i], other[i], expected[i], strict=True):
            assert sorted(drawn([mine, yours])) == sorted(drawn([all_rows]))
            assert mine.facts == yours.facts == all_rows.facts


def test_a_rank_without_rows_gets_an_empty_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    config = HindsightImitation(updates=1, batch_size=1)

    def work(rank: int) -> int:
        (batch,) = SolutionMemory(config, 0).batches([solution(5)] * (rank == 0), 0)
        return len(batch)

    assert sorted(on_ranks(2, work, monkeypatch, solution_memory)) == [0, 1]
