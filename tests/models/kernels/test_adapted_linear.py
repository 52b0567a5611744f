"""A layer and its adapter in one function have the sums and gradients of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

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


def test_rows_that_are_not_trained_get_no_gradient() -> None:
    """Behind frozen embeddings; the product that would give it is then not computed."""
    x, weight, bias, down, up = inputs(with_bias=False)
    adapted_linear(x.detach(), weight, bias, down, up, 2.0).sum().backward()  # type: ignore[no-untyped-call]
    low = x.detach() @ down.t()
    torch.testing.assert_close(up.grad, 2.0 * low.sum((0, 1)).expand(5, 2))
    assert x.grad is None
    assert down.grad is not None
