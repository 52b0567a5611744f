"""Collectives over objects, tensors and gradients; a single process is the special case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ragen_pl.errors import ConfigError

T = TypeVar("T")


def _active() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Return the number of ranks; 1 outside a distributed run."""
    return dist.get_world_size() if _active() else 1


def rank() -> int:
    """Return this process's rank; 0 outside a distributed run."""
    return dist.get_rank() if _active() else 0


def gather_objects(value: T) -> list[T]:
    """Return one picklable value per rank, in rank order; every rank must call it."""
    if not _active():
        return [value]
    gathered: list[T | None] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return cast("list[T]", gathered)


def all_reduce_max(value: float) -> float:
    """Return the largest value of all ranks, or NaN if any is NaN; every rank must call it."""
    return float(torch.tensor(gather_objects(value)).max())  # Python's max can lose a NaN


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks, on its device; every rank must call it."""
    if not _active():
        return tensor
    total = _communicable_copy(tensor)
    dist.all_reduce(total)
    return total.to(tensor.device)


def broadcast_from_rank0(tensor: Tensor) -> Tensor:
    """Return the first rank's tensor; every rank must call it with a tensor of that shape."""
    if not _active():
        return tensor
    values = _communicable_copy(tensor)
    dist.broadcast(values, src=0)
    return values.to(tensor.device)


def _communicable_copy(tensor: Tensor) -> Tensor:
    # NCCL communicates tensors on its own device only.
    device = torch.device("cuda") if dist.get_backend() == "nccl" else tensor.device
    return tensor.detach().to(device, copy=True)


_FAILURES = (ValueError, OSError, RuntimeError, MemoryError, ImportError, SafetensorError)
"""What a rank may fail with for reasons of its own, such as its memory or its disk."""


def all_or_none(make: Callable[[], T]) -> T:
    """Return the result of ``make`` on this rank; every rank must call it.

    Raises:
        ValueError: on all ranks, if ``make`` raises it on any; a ``ConfigError`` where that was
            one. A rank that went on alone would wait for the others forever.
        RuntimeError: where ``make`` fails in another way on another rank, such as for want of
            memory or of a file.
    """
    result, error = None, None
    try:
        result = make()
    except _FAILURES as raised:
        error = raised
    told = None if error is None else (_kind_elsewhere(error), str(error), type(error).__name__)
    for number, other in enumerate(gather_objects(told)):
        if error is None and other is not None:
            kind, message, name = other
            if kind is RuntimeError:
                message = f"rank {number} failed: {name}: {message}"
            raise kind(message)
    if error is not None:
        raise error
    return cast(T, result)


def _kind_elsewhere(error: Exception) -> type[Exception]:
    """Return what an error of this rank is on the others."""
    if isinstance(error, ConfigError):
        return ConfigError
    return ValueError if isinstance(error, ValueError) else RuntimeError


def keep_gradients_local(model: nn.Module | None) -> bool:
    """Disable DDP's averaging of gradients; return whether the model is wrapped in DDP.

    DDP averages during one backward pass, which must reach every parameter. An update here has one
    pass per micro-batch and network, and ranks may differ in the number of passes. Gradients
    therefore stay local and are summed once, before the optimizer step.
    """
    if not isinstance(model, DistributedDataParallel):
        return False
    model.require_backward_grad_sync = False  # as ``no_sync`` does; Lightning resets it every step
    return True


def all_reduce_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients over all ranks, in place; every rank must call it with equal parameters.

    A parameter with a gradient on some ranks only counts as zero on the others; one without a
    gradient on any rank keeps none.
    """
    if not _active():
        return
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    device = trainable[0].device
    has_grad = torch.tensor([parameter.grad is not None for parameter in trainable], device=device)
    counts = all_reduce_sum(has_grad.long()).tolist()
    summed = [parameter for parameter, count in zip(trainable, counts, strict=True) if count]
    for parameter in summed:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        # One by one: together they would need room for further copies of all gradients.
        parameter.grad.copy_(all_reduce_sum(parameter.grad))
