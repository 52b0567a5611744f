"""Packed weights give the products of plain ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ragen_pl.models.kernels import packed_linear
from ragen_pl.models.kernels.packed_linear import has_packed_products, linear, pack

SUPPORTED = has_packed_products(torch.bfloat16)


@pytest.fixture(autouse=True, scope="module")
def small_weights() -> Iterator[None]:
    """Pack these weights, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packed_linear, "_LEAST", 0)
        yield


@given(st.integers(1, 70), st.integers(1, 130), st.integers(1, 130), st.booleans())
@torch.no_grad()
def test_products_are_exact_up_to_rounding(
    rows: int, width: int, outputs: int, has_bias: bool
) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(2, rows, width).bfloat16(), torch.randn(outputs, width).bfloat16()
    x = x.transpose(0, 1)  # not contiguous
    bias = torch.randn(outputs).bfloat16() if has_bias else None
    packed = pack(weight)
    assert packed.is_mkldnn == SUPPORTED
    assert packed.shape == weight.shape
    exact = nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    largest = nn.functional.linear(x.double().abs(), weight.double().abs())
    largest += 0 if bias is None else bias.double().abs()
    error = (linear(x, packed, bias) - exact).abs()
    assert bool((error <= 2**-7 * largest).all()), "more than rounding to eight bits"


@pytest.mark.parametrize("rows", [1, 5, 64, 700])
@pytest.mark.parametrize(("width", "outputs"), [(192, 1024), (512, 192), (576, 960), (192, 121)])
def test_networks_keep_their_bits(rows: int, width: int, outputs: int) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, width).bfloat16(), torch.randn(outputs, width).bfloat16()
    assert linear(x, pack(weight)).equal(nn.functional.linear(x, weight))


def test_other_weights_and_machines_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(8, 4)
    assert pack(weight) is weight, "float32 would have other bits"
    meta = torch.empty(8, 4, dtype=torch.bfloat16, device="meta")
    assert pack(meta) is meta
    half = weight.bfloat16()
    assert pack(half).is_mkldnn == SUPPORTED
    with monkeypatch.context() as patch:
        patch.setattr(packed_linear, "_LEAST", 33)
        assert pack(half) is half, "a small one"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack(half) is half
    assert linear(half, half).equal(half @ half.t())
