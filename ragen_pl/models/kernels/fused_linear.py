"""Multiply few rows with weights, as a step of decoding does: a product that takes as long as its
weights take to come to the processor, if they come in the order they lie in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_SMALL = 1 << 18
"""Weights, a mebibyte, that a core's cache keeps, and that are copied to stand side by side, or
transposed. The products of larger maps gain nothing by that, and the copy would be a second
model."""
_FEW = range(5, 65)
"""Rows whose product takes about as long as reading the weights, if these come from memory."""
_BLOCK = 64
"""Rows of weights that are multiplied at a time."""


@dataclass(frozen=True, slots=True)
class FusedLinear:
    """Hold linear maps of the same input, in the type they are computed in.

    They are one where their weights are copied anyway or are small. Small ones in float32 on a CPU
    stand transposed: products of few rows then take six to eight tenths of the time.

    Args:
        weights: Each (out, in), or all in one.
        bias: Of all maps.
        blocks: The same weights, each (blocks, rows of one, in), where products of few rows read
            them by blocks.
    """

    weights: tuple[Tensor, ...]
    bias: Tensor | None
    blocks: tuple[Tensor, ...] | None

    @classmethod
    def of(cls, parts: list[nn.Linear], dtype: torch.dtype) -> FusedLinear:
        """Take the maps' weights over; they must all have a bias, or none."""
        weights = tuple(part.weight.detach() for part in parts)
        known = [part.bias.detach().to(dtype) for part in parts if part.bias is not None]
        bias = torch.cat(known) if known else None
        is_large = sum(weight.numel() for weight in weights) > _SMALL
        if is_large and weights[0].dtype == dtype:
            return cls(weights, bias, _in_blocks(weights))
        together = torch.cat([weight.to(dtype) for weight in weights])
        if not is_large and _is_float32_on_cpu(together):
            together = together.t().contiguous().t()
        return cls((together,), bias, None)

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows (…, in) to outcomes side by side, (…, out of all), which may not lie so."""
        if self.prefers_columns(x):
            return self.columns(as_columns(x)).t().view(*x.shape[:-1], -1)
        if len(self.weights) == 1:
            return linear(x, self.weights[0], self.bias)
        outcome = torch.cat([linear(x, weight) for weight in self.weights], dim=-1)
        return outcome if self.bias is None else outcome.add_(self.bias)

    def prefers_columns(self, x: Tensor) -> bool:
        """Say whether rows (…, in) had better be given as columns.

        A large product of a few rows in float32 on a CPU spends its time on copying the weights
        into another order. A block of them at a time, with columns on its right, is read where it
        lies: half to four fifths of the time.
        """
        return self.blocks is not None and x.numel() // x.shape[-1] in _FEW

    def columns(self, x: Tensor) -> Tensor:
        """Map columns (in, n) to outcomes below each other, (out of all, n)."""
        assert self.blocks is not None, "ask whether columns are taken"
        (width, count), numbers = x.shape, [blocks.shape[0] for blocks in self.blocks]
        outcome = x.new_empty(sum(numbers), _BLOCK, count)
        parts = torch.split_with_sizes(outcome, numbers)
        for blocks, part in zip(self.blocks, parts, strict=True):
            torch.bmm(blocks, x.expand(blocks.shape[0], width, count), out=part)
        outcome = outcome.view(-1, count)
        return outcome if self.bias is None else outcome.add_(self.bias[:, None])


def _in_blocks(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """View weights (out, in) as blocks of rows, if reading them so is quicker."""
    in_blocks = not any(weight.shape[0] % _BLOCK for weight in weights)
    if not in_blocks or not _is_float32_on_cpu(weights[0]):
        return None
    return tuple(weight.reshape(-1, _BLOCK, weight.shape[1]) for weight in weights)


def _is_float32_on_cpu(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


def as_columns(x: Tensor) -> Tensor:
    """Turn rows (…, d) into columns (d, n)."""
    return x.reshape(-1, x.shape[-1]).t().contiguous()
