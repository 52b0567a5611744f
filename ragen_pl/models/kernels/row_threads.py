"""A network on parts of a batch's rows, forward and backward, in threads that each have parts of
their own.

Where rows are ordered by length, parts have less padding than all rows have. Outputs and gradients
are those of all rows at once up to rounding, and the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ragen_pl.models.kernels.last_layer import is_known_and_unwrapped
from ragen_pl.runtime.parallel import in_threads

Rows = tuple[Tensor, ...]
Forward = Callable[..., Rows]
"""Function from tensors (B, T) of B rows to others."""

_LEAST_TOKENS = 256
"""Fewest tokens of a thread's part, padding included: Python takes as long for a part as for all
rows, and runs in one thread at a time."""
_LEAST_ROWS = 8
"""Fewest rows of a part that is only cut for its padding."""
_COST = 128
"""Tokens that take as long as what each part costs by itself."""
_MOST_PARTS = 8
"""Most parts of a thread."""
_MOST_GRADIENTS = 1 << 29
"""Largest number of elements that the threads' gradients have in all, 2 GiB in float32."""
_MOST_CUT_WEIGHTS = 1 << 26
"""Largest number of elements that the weights have in all parts that are only cut for their
padding: each has gradients, and under autocast rounded copies, of its own; and large networks lose
more where parts read a shared prompt again."""


def in_row_threads(
    forward: Forward, network: nn.Module, backbone: nn.Module, *rows: Tensor
) -> Rows:
    """Return ``forward(*rows)``, computed in parts, by as many threads as PyTorch has, where that
    is faster.

    Args:
        forward: A pass that reads the network's weights and changes nothing; its outputs, (B, T),
            are zero on padding.
        network: The network, whose trained weights get gradients.
        backbone: Its model without a head.
        rows: Tensors (B, T), the last one true on real tokens, best in order of length. Each part
            is cut to its longest row.
    """
    weights = []
    if torch.is_grad_enabled():
        weights = [weight for weight in network.parameters() if weight.requires_grad]
    count = _number_of_parts(rows[-1], network, weights)
    if count < 2 or not is_known_and_unwrapped(backbone, network):
        return forward(*rows)
    length = rows[0].shape[1]
    divided = (each.tensor_split(count) for each in rows)
    passes = [partial(forward, *_cut(part)) for part in zip(*divided, strict=True)]
    if weights:
        outputs: Rows = _Parts.apply(passes, length, *weights)  # type: ignore[no-untyped-call]
        return outputs
    return _joined(in_threads(passes, torch.get_num_threads()), length)


def _number_of_parts(padding: Tensor, network: nn.Module, trained: Sequence[nn.Parameter]) -> int:
    """Return into how many parts rows are cut, given which of their tokens are real, (B, T).

    A part for each thread, if at least half of the threads get one; more where less padding saves
    more than they cost.
    """
    if padding.device.type != "cpu":
        return 1
    threads, gradients = torch.get_num_threads(), max(1, _size(trained))
    possible = (len(padding), padding.numel() // _LEAST_TOKENS, _MOST_GRADIENTS // gradients)
    fewest = min(threads, *possible)
    if fewest < 1 or 2 * fewest < threads:
        return 1
    fitting = _MOST_CUT_WEIGHTS // _size(network.parameters())
    most = min(len(padding) // _LEAST_ROWS, fitting, fewest * _MOST_PARTS)
    if most <= fewest:
        return fewest
    lengths = padding.sum(1).numpy()

    def cost(count: int) -> int:
        parts = np.array_split(lengths, count)
        return count * _COST + sum(len(part) * int(part.max()) for part in parts)

    return min(range(fewest, most + 1, fewest), key=cost)


def _size(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def _cut(rows: Rows) -> Rows:
    """Drop the columns that are padding in all rows of a part."""
    longest = int(rows[-1].sum(1).max())
    return tuple(each[:, :longest] for each in rows)


def _joined(parts: Sequence[Rows], length: int) -> Rows:
    """Join the outputs of all parts, (rows of a part, up to T), to (B, T)."""
    padded = (
        [nn.functional.pad(each, (0, length - each.shape[1])) for each in output]
        for output in zip(*parts, strict=True)
    )
    return tuple(torch.cat(each) for each in padded)


class _Parts(torch.autograd.Function):
    """The passes of all parts. Each has a graph of its own, which a thread runs backwards."""

    @staticmethod
    def forward(
        ctx: Any, passes: Sequence[Callable[[], Rows]], length: int, *weights: nn.Parameter
    ) -> Rows:
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            ctx.parts, ctx.weights = in_threads(passes, torch.get_num_threads()), weights
        return _joined([tuple(output.detach() for output in part) for part in ctx.parts], length)

    @staticmethod
    @once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()  # retain_graph
        passes, start = [], 0
        for part in ctx.parts:
            count, length = part[0].shape
            given = [
                (output, gradient[start : start + count, :length])
                for output, gradient in zip(part, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            passes.append(partial(_gradients, ctx.weights, given, is_kept))
            start += count
        first, *others = in_threads(passes, torch.get_num_threads())
        for other in others:  # in their order, so that rounding repeats itself
            first = [_sum(one, more) for one, more in zip(first, other, strict=True)]
        return None, None, *first


def _gradients(
    weights: Sequence[nn.Parameter], given: Sequence[tuple[Tensor, Tensor]], is_kept: bool
) -> Sequence[Tensor | None]:
    """Return the gradients of the weights, given those of a part's outputs; keep its graph for
    another call, or not."""
    if not given:
        return [None] * len(weights)
    outputs, gradients = zip(*given, strict=True)
    return torch.autograd.grad(outputs, weights, gradients, retain_graph=is_kept, allow_unused=True)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add gradients, of which None is zero."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
