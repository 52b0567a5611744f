"""Muon's step, taken for many matrices of one shape at a time, and on whole ones if they are
sharded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Muon

from ragen_pl.distributed.sharding import full_tensor, shard_like
from ragen_pl.runtime.parallel import in_threads

STACKED_ELEMENTS = 1 << 22
"""Elements of a stack of matrices, unless one matrix alone has more. The products of larger
matrices keep a device busy one by one, and stacks of them would need memory for nothing."""
RMS = 0.2
"""Root mean square of AdamW's usual steps, which Muon's are scaled to (arXiv 2502.16982, eq. 4)."""


class StackedMuon(Muon):
    """PyTorch's Muon with ``adjust_lr_fn="match_rms_adamw"``, on stacks of matrices.

    PyTorch's own (2.13) orthogonalizes one matrix after the other, some fifteen small products
    each, so that a small network, or the hundreds of thin matrices of adapters, waits for launches.
    Its operations on shards communicate 11 to 15 times per matrix, in bfloat16, whose rounding then
    depends on the number of ranks, and fail for some shapes. Here every rank gathers a stack's
    weights, gradients and momentum, takes the step of a single process, and keeps its shards of the
    result. Orthogonalization is therefore not divided among the ranks. It computes in bfloat16, as
    PyTorch's, but on a CPU in float32 (``orthogonalization_dtype``), under autocast, too, in which
    Lightning takes steps.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; if matrices are sharded, every rank must call it."""
        assert closure is None, "the optimizer around this one calls it"
        for group in self.param_groups:
            for weight in group["params"]:  # before the threads, so that the state keeps its order
                if weight.grad is not None and not self.state[weight]:
                    self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
            longest_first = sorted(stacks(group["params"]), key=_cost, reverse=True)
            steps = [partial(self._step, each, group) for each in longest_first]
            in_threads(steps, _threads(group["params"]))
        return None

    def _step(self, weights: Sequence[nn.Parameter], settings: dict[str, Any]) -> None:
        decay, momentum = settings["lr"] * settings["weight_decay"], settings["momentum"]
        shape, device = (len(weights), *weights[0].shape), weights[0].device
        directions = torch.empty(shape, dtype=orthogonalization_dtype(device), device=device)
        for weight, direction in zip(weights, directions, strict=True):
            gradient = full_tensor(_gradient(weight))
            kept = self.state[weight]["momentum_buffer"]
            mean = full_tensor(kept).lerp_(gradient, 1 - momentum)
            _overwrite(kept, mean)
            direction.copy_(gradient.lerp(mean, momentum) if settings["nesterov"] else mean)
        with _without_autocast(device):
            steps = orthogonalized(
                directions, settings["ns_coefficients"], settings["ns_steps"], settings["eps"]
            )
        rate = settings["lr"] * RMS * math.sqrt(max(weights[0].shape))
        for weight, step in zip(weights, steps, strict=True):
            _overwrite(weight, full_tensor(weight).mul_(1 - decay).add_(step, alpha=-rate))


def stacks(weights: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Iterate over the weights that have gradients, as stacks of one shape, dtype and device with
    at most ``STACKED_ELEMENTS`` elements, or of one matrix."""
    alike: dict[object, list[nn.Parameter]] = {}
    for weight in weights:
        if weight.grad is not None:
            alike.setdefault((weight.shape, weight.dtype, weight.device), []).append(weight)
    for equal in alike.values():
        size = max(1, STACKED_ELEMENTS // max(1, equal[0].numel()))
        yield from (equal[at : at + size] for at in range(0, len(equal), size))


def orthogonalization_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype that matrices are orthogonalized in: float32 on a CPU, where products in
    bfloat16 may take as long or, without instructions for them, 30 times as long."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Let products on a device have the type of their factors; tensors without data have no
    autocast."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _cost(weights: Sequence[nn.Parameter]) -> int:
    """Return what the products of a stack's step cost, up to a factor."""
    return sum(weight.numel() * min(weight.shape) for weight in weights)


def _threads(weights: Sequence[nn.Parameter]) -> int:
    """Return how many stacks' steps may run at a time: shards are gathered in one order, and a
    device runs one product at a time."""
    is_whole_on_cpu = all(w.device.type == "cpu" and not isinstance(w, DTensor) for w in weights)
    return torch.get_num_threads() if is_whole_on_cpu else 1


def orthogonalized(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return each matrix with its singular values set to about one.

    A quintic Newton-Schulz iteration (Jordan et al. 2024,
    https://kellerjordan.github.io/posts/muon), with the operations of PyTorch's, each for all
    matrices at once.

    Args:
        matrices: Matrices of one shape, (n, rows, columns).
        coefficients: Of the first, third and fifth power.
        steps: Number of iterations.
        eps: Least norm that a matrix is divided by.

    Returns:
        Matrices of the same shape and dtype.
    """
    first, third, fifth = coefficients
    is_tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if is_tall else matrices
    norms = torch.stack([matrix.norm() for matrix in wide])
    wide = wide / norms.clamp(min=eps)[:, None, None]
    for _ in range(steps):
        gram = wide @ wide.mT
        factor = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        wide = torch.baddbmm(wide, factor, wide, beta=first)
    return wide.mT if is_tall else wide


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def _overwrite(own: Tensor, whole: Tensor) -> None:
    """Set a tensor, or this rank's shard of it, to a whole one's values."""
    if own is not whole:
        own.copy_(shard_like(whole, own) if isinstance(own, DTensor) else whole)
