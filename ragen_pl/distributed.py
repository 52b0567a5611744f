"""Exchange small objects between ranks; a single process is the special case."""

from __future__ import annotations

from typing import TypeVar, cast

import torch.distributed as dist
from torch import Tensor

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


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum a tensor over all ranks."""
    if not _active():
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total
