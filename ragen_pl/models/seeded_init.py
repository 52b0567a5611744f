"""Draw initial weights from a seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_init(seed: int, device: str = "cpu") -> Iterator[None]:
    """Make modules whose weights depend on the seed, and on nothing that was drawn before.

    They are made on the CPU, wherever they go afterwards: a GPU draws other numbers, so that one
    process and shards of many would begin with different policies.

    Args:
        seed: Of the weights.
        device: ``meta`` makes modules without weights.
    """
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.default_generator.manual_seed(seed)
        yield
