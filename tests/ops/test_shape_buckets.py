"""Bucket sizes are few, close to the size that is padded, and used only where that pays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.shape_buckets import bucket_size, round_down, round_up

SIZES = st.integers(1, 1 << 20)


@given(SIZES)
def test_a_size_is_rounded_up_by_an_eighth_at_most(size: int) -> None:
    assert size <= round_up(size) <= size * 9 / 8
    assert round_up(round_up(size)) == round_up(size)


@given(SIZES, SIZES)
def test_rounding_is_monotonic(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert round_up(low) <= round_up(high)
    assert round_down(low) <= round_down(high)


@given(SIZES)
def test_rounding_down_gives_the_largest_bucket_not_above(size: int) -> None:
    last = round_down(size)
    assert last <= size < round_up(last + 1)
    assert round_up(last) == last


@pytest.mark.parametrize("per_octave", [4, 8])
def test_number_of_buckets_per_octave(per_octave: int) -> None:
    for octave in (32, 64, 1024):
        sizes = {round_up(size, per_octave) for size in range(octave + 1, 2 * octave + 1)}
        assert len(sizes) == per_octave
        assert max(sizes) == 2 * octave


def test_sizes_are_padded_where_kernels_are_compiled_per_shape() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert (bucket_size(100, cpu), bucket_size(100, gpu)) == (100, 100)
    with torch.autocast("cpu", torch.bfloat16):
        assert (bucket_size(100, cpu), bucket_size(100, gpu)) == (104, 100)
