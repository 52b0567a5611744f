"""Fused layers, of rows or of columns, give the results of the layers they are made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ragen_pl.models.kernels import fused_linear, packed_linear
from ragen_pl.models.kernels.fused_linear import FusedLinear, as_columns
from ragen_pl.models.kernels.packed_linear import pack

SIZES = st.lists(st.sampled_from([1, 3, 8, 16]), min_size=1, max_size=3)


def make_layers(sizes: list[int], width: int, bias: bool) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(width, size, bias=bias) for size in sizes]


@given(SIZES, st.integers(1, 9), st.integers(1, 12), st.booleans(), st.booleans())
@torch.no_grad()
def test_outputs_are_concatenated(
    sizes: list[int], width: int, rows: int, bias: bool, is_large: bool
) -> None:
    layers = make_layers(sizes, width, bias)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fused_linear, "_SMALL", 0 if is_large else 1 << 18)
        patched.setattr(fused_linear, "_BLOCK", 8)
        held = FusedLinear.of(layers, torch.float32)
        x = torch.randn(rows, 1, width)
        expected = torch.cat([layer(x) for layer in layers], dim=-1)
        torch.testing.assert_close(held(x), expected)
        by_blocks = (
            is_large and rows in fused_linear._FEW_ROWS and not any(size % 8 for size in sizes)
        )
        assert held.prefers_columns(x) == by_blocks
        if by_blocks:
            torch.testing.assert_close(held.columns(as_columns(x)), expected[:, 0].t())


def test_small_weights_in_float32_are_transposed_and_others_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = make_layers([3, 5], 4, bias=False)
    (weight,) = FusedLinear.of(layers, torch.float32).weights
    assert weight.shape == (8, 4)
    assert weight.dtype == torch.float32
    assert weight.t().is_contiguous()
    (weight,) = FusedLinear.of(layers, torch.bfloat16).weights
    assert weight.shape == (8, 4)
    assert weight.dtype == torch.bfloat16
    assert not weight.is_mkldnn
    monkeypatch.setattr(packed_linear, "_LEAST", 0)
    (weight,) = FusedLinear.of(layers, torch.bfloat16).weights
    assert weight.is_mkldnn == pack(weight.to_dense()).is_mkldnn


def test_large_weights_are_copied_only_to_be_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_linear, "_SMALL", 0)
    layers = make_layers([64, 64], 4, bias=True)
    own = {layer.weight.data_ptr() for layer in layers}
    assert {weight.data_ptr() for weight in FusedLinear.of(layers, torch.float32).weights} == own
    cast = FusedLinear.of(layers, torch.bfloat16)
    assert len(cast.weights) == 1
    assert not cast.prefers_columns(torch.zeros(8, 4, dtype=torch.bfloat16)), "float32 alone gains"
