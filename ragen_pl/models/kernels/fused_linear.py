"""Linear layers with the same input, fused for the few rows of a decode step.

A product of few rows takes as long as reading its weights from memory, if they are read in the
order in which they are stored. One plain concatenated product would be simpler, but it would change
the last bits of float32 results (of small weights at 1 to 3 rows, of large ones at 5 to 12 and with
a bias), and with them every sampled token; and the layout and blocks here take 0.5 to 0.85 of its
time (``benchmarks/LOG.md``, entries 15 and 16; whole steps of decoding gain less).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ragen_pl.models.kernels.packed_linear import has_packed_products, linear, pack
from ragen_pl.models.lora import AdapterMatrices, split_adapter

_SMALL = 1 << 18
"""Largest number of weights (a mebibyte in float32, which fits in a core's cache) that are copied
to be concatenated or transposed. The products of larger layers gain nothing by that, and the copy
would be a second model in memory; on a CPU that has packed products it is one all the same."""
_FEW_ROWS = range(5, 65)
"""Numbers of rows whose product takes about as long as reading the weights from memory."""
_BLOCK = 64
"""Rows of the weights that are multiplied at a time."""


@dataclass(frozen=True, slots=True)
class FusedLinear:
    """Linear layers with the same input, fused, with weights in the type of computation.

    Weights that are small, or copied anyway to be cast or packed, are concatenated. On a CPU, those
    in bfloat16 are packed, and small ones in float32 are stored transposed: products of few rows
    then take 0.5 to 0.9, or 0.6 to 0.8, of the time.

    Args:
        weights: Weight matrices (out, in), one per layer, or a single concatenated one.
        bias: Biases of all layers, concatenated; None for layers without one.
        blocks: The same weights as (blocks, rows of a block, in), for products of few rows; None if
            blocks would not be faster.
    """

    weights: tuple[Tensor, ...]
    bias: Tensor | None
    blocks: tuple[Tensor, ...] | None
    adapter: AdapterMatrices | None = None
    """The layers' adapters as one, of all their ranks; None where no layer has one."""

    @classmethod
    def of(cls, layers: Sequence[nn.Module], dtype: torch.dtype) -> FusedLinear:
        """Fuse linear layers that are ``alike``, with their adapters, which stay apart from the
        weights, since in 16 bits small changes of a weight would be lost."""
        assert alike(layers), "layers that differ in their biases or adapters"
        parts = [split_adapter(layer) for layer in layers]
        fused = cls._of([base for base, _ in parts], dtype)
        adapters = [adapter for _, adapter in parts if adapter is not None]
        if not adapters:
            return fused
        down = torch.cat([each.down for each in adapters])
        blocks = [  # nothing is added to the outputs of a layer without an adapter
            down.new_zeros(len(base.weight), 0) if adapter is None else adapter.up
            for base, adapter in parts
        ]
        up = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        joined = AdapterMatrices(pack(down.to(dtype)), pack(up.to(dtype)), adapters[0].scaling)
        return replace(fused, adapter=joined)

    @classmethod
    def _of(cls, layers: list[nn.Linear], dtype: torch.dtype) -> FusedLinear:
        weights = tuple(layer.weight.detach() for layer in layers)
        biases = [layer.bias.detach().to(dtype) for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        is_large = sum(weight.numel() for weight in weights) > _SMALL
        is_copied = weights[0].device.type == "cpu" and has_packed_products(dtype)
        if is_large and weights[0].dtype == dtype and not is_copied:
            return cls(weights, bias, _in_blocks(weights))
        fused = torch.cat([weight.to(dtype) for weight in weights])
        if not is_large and _is_float32_on_cpu(fused):
            fused = fused.t().contiguous().t()
        return cls((pack(fused),), bias, None)

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows (…, in) to (…, sum of out), which need not be contiguous."""
        if self.prefers_columns(x):
            return self.columns(as_columns(x)).t().view(*x.shape[:-1], -1)
        out = self._without_adapter(x)
        if self.adapter is not None:  # each step is rounded as in the library's layer
            low = linear(x, self.adapter.down)
            out = out.add_(linear(low, self.adapter.up).mul_(self.adapter.scaling))
        return out

    def _without_adapter(self, x: Tensor) -> Tensor:
        if len(self.weights) == 1:
            return linear(x, self.weights[0], self.bias)
        if self.bias is None or x.dtype == torch.float32:
            out = torch.cat([linear(x, weight) for weight in self.weights], dim=-1)
            return out if self.bias is None else out.add_(self.bias)
        # In 16 bits a bias that is added afterwards is rounded twice.
        biases = torch.split_with_sizes(self.bias, [len(weight) for weight in self.weights])
        each = zip(self.weights, biases, strict=True)
        return torch.cat([linear(x, weight, bias) for weight, bias in each], dim=-1)

    def prefers_columns(self, x: Tensor) -> bool:
        """Return whether rows (…, in) are better passed to ``columns``.

        A large product of a few rows in float32 on a CPU spends its time on copying the weights
        into another order. Weights multiplied one block at a time, with columns on the right, are
        read in place, which takes 0.5 to 0.8 of the time.
        """
        return self.blocks is not None and x.numel() // x.shape[-1] in _FEW_ROWS

    def columns(self, x: Tensor) -> Tensor:
        """Map columns (in, n) to (sum of out, n)."""
        assert self.blocks is not None, "call prefers_columns first"
        (width, count), numbers = x.shape, [blocks.shape[0] for blocks in self.blocks]
        out = x.new_empty(sum(numbers), _BLOCK, count)
        parts = torch.split_with_sizes(out, numbers)
        for blocks, part in zip(self.blocks, parts, strict=True):
            torch.bmm(blocks, x.expand(blocks.shape[0], width, count), out=part)
        out = out.view(-1, count)
        out = out if self.bias is None else out.add_(self.bias[:, None])
        if self.adapter is not None:
            low = self.adapter.down @ x
            out = out.add_((self.adapter.up @ low).mul_(self.adapter.scaling))
        return out


def alike(layers: Sequence[nn.Module]) -> bool:
    """Return whether linear layers with the same input can be fused: all or none have a bias, and
    those with an adapter have one scaling."""
    parts = [split_adapter(layer) for layer in layers]
    biases = {base.bias is None for base, _ in parts}
    scalings = {adapter.scaling for _, adapter in parts if adapter is not None}
    return len(biases) == 1 and len(scalings) <= 1


def _in_blocks(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """View weights (out, in) as blocks of rows; None if that is not faster."""
    is_divisible = not any(weight.shape[0] % _BLOCK for weight in weights)
    if not is_divisible or not _is_float32_on_cpu(weights[0]):
        return None
    return tuple(weight.reshape(-1, _BLOCK, weight.shape[1]) for weight in weights)


def _is_float32_on_cpu(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


def as_columns(x: Tensor) -> Tensor:
    """Return rows (…, d) as contiguous columns (d, n)."""
    return x.reshape(-1, x.shape[-1]).t().contiguous()
