"""A frozen linear layer with an adapter, forward and backward, in products that add to each other.

The library computes the adapter's output, scales it and adds it to the layer's, each in a pass over
all numbers, and backwards again: a seventh of an update of 135M parameters on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


def adapted_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scaling: float
) -> Tensor:
    """Return rows (…, in) after a frozen layer and its adapter, (…, out).

    Args:
        x: The rows.
        weight: (out, in), which gets no gradient, nor does the bias.
        bias: (out,), or None.
        down: (rank, in).
        up: (out, rank).
        scaling: Factor of the adapter's product.
    """
    rows = x.reshape(-1, x.shape[-1])
    product = _AdaptedProduct.apply(rows, weight, bias, down, up, scaling)  # type: ignore[no-untyped-call]
    return product.view(*x.shape[:-1], len(weight))  # type: ignore[no-any-return]


class _AdaptedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scaling: float,
    ) -> Tensor:
        low = rows @ down.t()
        ctx.save_for_backward(rows, low, weight, down, up)
        ctx.scaling = scaling
        return linear(rows, weight, bias).addmm_(low, up.t(), alpha=scaling)

    @staticmethod
    @once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, low, weight, down, up = ctx.saved_tensors
        for_low = (gradient @ up).mul_(ctx.scaling)
        for_up = (gradient.t() @ low).mul_(ctx.scaling)
        for_rows = None
        if ctx.needs_input_grad[0]:  # not where embeddings are frozen
            for_rows = (gradient @ weight).addmm_(for_low, down)
        return for_rows, None, None, for_low.t() @ rows, for_up, None
