"""Weights in the order in which a CPU multiplies them, for products in bf16.

PyTorch's product of bf16 matrices on a CPU copies the weights into such an order at every call,
which takes longer than the product where it has few rows. Weights that are copied once take 0.5 of
the time for 8 rows of 576 by 49,152 numbers, 0.7 for 32 and 0.9 for thousands, with the same bits
in the shapes of networks on a CPU with AVX512-BF16 (``benchmarks/LOG.md``, entry 48).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_LEAST = 1 << 18
"""Fewest numbers of a packed weight. With smaller ones, whose products take less than the call, a
rollout of the default run took a tenth longer."""


def has_packed_products(dtype: torch.dtype) -> bool:
    """Return whether this machine's CPU has such an order for weights of a type."""
    return (
        dtype == torch.bfloat16
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def pack(weight: Tensor) -> Tensor:
    """Return a weight (out, in) in that order, if it is large and this machine has one for it, or
    the weight.

    Only ``linear`` of this module and ``shape`` can be used on what is returned.
    """
    is_large = weight.device.type == "cpu" and weight.numel() >= _LEAST
    if not is_large or not has_packed_products(weight.dtype):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the product of rows (…, in) and a weight that may be packed, plus the bias (out,)."""
    if not weight.is_mkldnn:
        return functional.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
