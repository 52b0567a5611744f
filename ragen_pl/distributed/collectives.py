"""Exchange small objects and gradients between ranks; a single process is the special case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


def _active() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Count the ranks; 1 outside a distributed run."""
    return dist.get_world_size() if _active() else 1


def rank() -> int:
    """Return this process's rank; 0 outside a distributed run."""
    return dist.get_rank() if _active() else 0


def gather_objects(value: T) -> list[T]:
    """Collect one picklable value per rank, in rank order; every rank must call it."""
    if not _active():
        return [value]
    gathered: list[T | None] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return cast("list[T]", gathered)


def all_reduce_max(value: float) -> float:
    """Return the largest of all ranks' values, or NaN where any is; every rank must call it."""
    return float(torch.tensor(gather_objects(value)).max())  # Python's max can lose a NaN


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum a tensor over all ranks; the result lies where the tensor does."""
    if not _active():
        return tensor
    # NCCL knows no other memory than its device's.
    through = torch.device("cuda") if dist.get_backend() == "nccl" else tensor.device
    total = tensor.detach().to(through, copy=True)
    dist.all_reduce(total)
    return total.to(tensor.device)


def broadcast_from_rank0(tensor: Tensor) -> Tensor:
    """Return the first rank's values; every rank must call it with equal shapes."""
    if not _active():
        return tensor
    through = torch.device("cuda") if dist.get_backend() == "nccl" else tensor.device
    values = tensor.detach().to(through, copy=True)
    dist.broadcast(values, src=0)
    return values.to(tensor.device)


def all_or_none(make: Callable[[], T]) -> T:
    """Return what ``make`` makes on this rank; every rank must call it.

    Raises:
        ValueError: on all ranks, where it does so on any: none may go on alone, to wait for others.
    """
    made, problem = None, None
    try:
        made = make()
    except ValueError as error:
        problem = error
    told = [message for message in gather_objects(problem and str(problem)) if message is not None]
    if problem is not None or told:
        raise problem or ValueError(told[0])
    return cast(T, made)


def keep_gradients_local(model: nn.Module | None) -> bool:
    """Tell DDP to leave gradients as each rank computed them; return whether there is one to tell.

    DDP averages during one backward pass that reaches every parameter. An update here has a pass
    per micro-batch and network, and ranks may differ in how many they need: whoever keeps
    gradients local sums them once, before the step.
    """
    if not isinstance(model, DistributedDataParallel):
        return False
    model.require_backward_grad_sync = False  # as ``no_sync`` does; Lightning resets it every step
    return True


def all_reduce_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of all ranks, each of which must call it with equal parameters.

    A parameter that has a gradient on some ranks counts as zero on the others; one that has none
    anywhere keeps none.
    """
    if not _active():
        return
    every = [parameter for parameter in parameters if parameter.requires_grad]
    has = torch.tensor([parameter.grad is not None for parameter in every], device=every[0].device)
    anywhere = all_reduce_sum(has.long()).tolist()
    taking_part = [parameter for parameter, count in zip(every, anywhere, strict=True) if count]
    for parameter in taking_part:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    for dtype in dict.fromkeys(parameter.dtype for parameter in taking_part):
        grads = [p.grad for p in taking_part if p.grad is not None and p.dtype is dtype]
        flat = all_reduce_sum(torch.cat([grad.flatten() for grad in grads]))
        for grad, total in zip(
            grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True
        ):
            grad.copy_(total.view_as(grad))
