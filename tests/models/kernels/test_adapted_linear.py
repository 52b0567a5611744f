"""A layer and its adapter in one function have the sums and gradients of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ragen_pl.models.kernels.adapted_linear import adapted_linear


def inputs(with_bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int, is_trained: bool = True) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.requires_grad_(is_trained)

    bias = numbers(5, is_trained=False) if with_bias else None
    return numbers(2, 3, 4), numbers(5, 4, is_trained=False), bias, numbers(2, 4), numbers(5, 2)


@pytest.mark.parametrize("with_bias", [False, True])
def test_outputs_and_gradients_are_those_of_the_formula(with_bias: bool) -> None:
    x, weight, bias, down, up = inputs(with_bias)
    expected = x @ weight.t() + 1.5 * (x @ down.t() @ up.t())
    found = adapted_linear(x, weight, bias, down, up, 1.5)
    torch.testing.assert_close(found, expected if bias is None else expected + bias)

    def of_trained(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
        return adapted_linear(x, weight, bias, down, up, 1.5)

    assert torch.autograd.gradcheck(of_trained, (x, down, up))


def products(rows_are_trained: bool) -> int:
    """Return the number of matrix products of a backward pass."""
    x, weight, bias, down, up = inputs(with_bias=False)
    found = adapted_linear(x.detach().requires_grad_(rows_are_trained), weight, bias, down, up, 2.0)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        found.sum().backward()  # type: ignore[no-untyped-call]
    low = x.detach() @ down.t()
    torch.testing.assert_close(up.grad, 2.0 * low.sum((0, 1)).expand(5, 2))
    assert down.grad is not None
    return sum(event.name in ("aten::mm", "aten::addmm_") for event in profiled.events())


def test_rows_that_are_not_trained_cost_no_product() -> None:
    """As those of the first layer, behind frozen embeddings."""
    assert products(rows_are_trained=False) == 3
    assert products(rows_are_trained=True) == 5
