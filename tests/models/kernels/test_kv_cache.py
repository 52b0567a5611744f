"""A cache of rows of unequal length in one buffer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.models.kernels.kv_cache import RaggedCache


@pytest.fixture(autouse=True, params=[torch.float32, torch.float64], ids=str)
def _layouts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keys of both layouts: transposed in float32 with additive masks, not in other types."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


def write(cache: RaggedCache, width: int, counts: list[int], stamp: float) -> tuple[Tensor, Tensor]:
    """Write one block of a single layer, and return (keys, mask): every key is the stamp plus its
    position."""
    positions, mask = cache.open_block(width, np.array(counts))
    keys = (positions + stamp)[:, None, :, None].to(torch.get_default_dtype())
    keys = keys.expand(-1, 2, -1, 4)
    shown, _ = cache.update(keys, -keys, 0)
    cache.close_block(np.array(counts))
    return shown, mask if mask.dtype == torch.bool else mask == 0


def test_keys_are_transposed_for_our_attention_alone() -> None:
    is_transposed = torch.get_default_dtype() == torch.float32
    for is_additive in (True, False):
        cache = RaggedCache(2, 60, additive_mask=is_additive)
        shown, _ = write(cache, 3, [3, 1], 0.0)
        assert (shown.stride(-2) == 1) == (is_additive and is_transposed)
        assert (shown.stride(-1) == 1) != (is_additive and is_transposed)


def visible(shown: Tensor, mask: Tensor, row: int) -> list[float]:
    """Return the keys that the last column of a row attends to."""
    return shown[row, 0, mask[row, 0, -1], 0].tolist()


def test_a_row_attends_to_its_own_tokens_in_order() -> None:
    cache = RaggedCache(2, 200, additive_mask=True)
    write(cache, 3, [3, 1], 0.0)
    shown, mask = write(cache, 2, [1, 2], 100.0)
    assert visible(shown, mask, 0) == [0, 1, 2, 103]
    assert visible(shown, mask, 1) == [0, 101, 102]
    assert cache.lengths.tolist() == [4, 3]


def test_a_column_attends_to_no_later_one_and_padding_to_something() -> None:
    cache = RaggedCache(2, 200, additive_mask=True)
    _, mask = write(cache, 3, [3, 1], 0.0)
    assert mask.sum(-1)[0, 0].tolist() == [1, 2, 3]
    assert mask.sum(-1)[1, 0].tolist() == [1, 1, 1]
    assert not mask[..., -1].any(), "the spare slot"


def test_buffers_grow_and_keep_what_they_hold() -> None:
    cache = RaggedCache(1, 121, additive_mask=True)
    write(cache, 30, [30], 0.0)
    shown, mask = write(cache, 90, [90], 1000.0)
    assert visible(shown, mask, 0) == [*range(30), *range(1030, 1120)]
    assert cache.padded_length == 122, "no more than a row can hold, and the spare slot"
    assert cache.keys[0].numel() == cache.values[0].numel() == 2 * 122 * 4


def test_buffers_that_are_read_in_parts_grow_by_more() -> None:
    cache, is_transposed = (
        RaggedCache(2, 1000, additive_mask=True),
        torch.get_default_dtype() == torch.float32,
    )
    rooms = set()
    for token in range(500):
        shown, _ = write(cache, 1, [1, 1], token)
        rooms.add(cache.keys[0].numel())
        assert shown.isfinite().all(), "what is hidden is multiplied by zero"
        if not is_transposed:
            assert shown.is_contiguous(), "a batched product would copy anything else"
    assert cache.padded_length == 512
    assert len(rooms) == (8 if is_transposed else 16)
    room = cache.keys[0].shape[3 if cache.transposed_keys else 2]
    assert 512 <= room <= 640
    assert (room > 512) == is_transposed


def test_inactive_rows_are_not_changed() -> None:
    cache = RaggedCache(3, 200, additive_mask=True)
    write(cache, 2, [2, 2, 2], 0.0)
    cache.active_rows = slice(1, 2)
    shown, mask = write(cache, 40, [40], 500.0)
    assert shown.shape[0] == 1
    assert visible(shown, mask, 0) == [0, 1, *range(502, 542)]
    cache.active_rows = slice(0, 3)
    shown, mask = write(cache, 1, [1, 1, 1], 900.0)
    assert visible(shown, mask, 0) == [0, 1, 902]
    assert visible(shown, mask, 2) == [0, 1, 902]


def test_rows_are_exchanged_gathered_and_shared() -> None:
    for index in ([2, 1, 0, 3], [3, 2, 1, 0], [1, 1, 0], [0, 0, 0, 1, 2, 3]):
        cache = RaggedCache(4, 200, additive_mask=True)
        write(cache, 4, [1, 2, 3, 4], 0.0)
        cache.keys[0] += torch.arange(4.0)[:, None, None, None] * 10
        cache.reorder(np.array(index))
        assert cache.lengths.tolist() == [i + 1 for i in index]
        shown, mask = write(cache, 1, [1] * len(index), 900.0)
        for row, i in enumerate(index):
            assert visible(shown, mask, row) == [*(10 * i + k for k in range(i + 1)), 901 + i]


BLOCKS = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=12)


@given(BLOCKS)
def test_every_token_attends_to_itself_and_earlier_ones(blocks: list[list[int]]) -> None:
    plain, additive = RaggedCache(3, 60), RaggedCache(3, 60, additive_mask=True)
    for block in blocks:
        counts, width = np.array(block), max(1, *block)
        for cache in (plain, additive):
            lengths = cache.lengths.copy()
            _, mask = cache.open_block(width, counts)
            shown = mask if mask.dtype == torch.bool else mask == 0
            assert cache.additive_mask == (mask.dtype == torch.float32)
            assert shown.any(-1).all(), "a softmax over nothing"
            for row, count in enumerate(block):
                for place in range(count):
                    slots = shown[row, 0, width - count + place].nonzero()[:, 0].tolist()
                    assert slots == list(range(lengths[row] + place + 1))
            cache.close_block(counts)


def test_padding_in_the_spare_slot_stays_hidden_when_rows_grow_past_it() -> None:
    cache = RaggedCache(2, 200, additive_mask=True)
    write(cache, 20, [20, 3], 0.0)
    assert cache.padded_length == 32, "padding lies in slot 31"
    for token in range(30):
        shown, mask = write(cache, 1, [1, 1], 100.0)
        for row, before in enumerate((20, 3)):
            seen = [*range(before), *range(100 + before, 101 + before + token)]
            assert visible(shown, mask, row) == seen


def test_a_row_beyond_max_context_is_refused() -> None:
    cache = RaggedCache(1, 5, additive_mask=True)
    write(cache, 5, [5], 0.0)
    with pytest.raises(AssertionError, match="a row of 6 tokens in 5"):
        write(cache, 1, [1], 0.0)
