"""Weight initialization from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_init(seed: int, device: str = "cpu") -> Iterator[None]:
    """Make the weights of modules built within a function of the seed alone.

    Modules are built on the CPU, wherever they are moved afterwards: a GPU's random numbers differ,
    so that one process and many with shards would start with different policies.

    Args:
        seed: Seed of the weights.
        device: ``meta`` builds modules without weights.
    """
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.default_generator.manual_seed(seed)
        yield
