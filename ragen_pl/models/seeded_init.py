"""Weight initialization from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_init(seed: int, device: str = "cpu") -> Iterator[None]:
    """Make the initial weights of modules that are built in this context depend on the seed alone.

    Modules are built on the CPU and may be moved afterwards. A GPU draws other random numbers, so
    that a run of one process and a sharded run would start with different policies.

    Args:
        seed: Seed of the weights.
        device: Device to build on; ``meta`` gives modules without weights.
    """
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.default_generator.manual_seed(seed)
        yield
