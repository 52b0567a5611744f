"""Move tensors between devices without waiting where nobody has to."""

from __future__ import annotations

import torch
from torch import Tensor

_WAITS = ("cpu", "mps")
"""What comes to the CPU is read there at once, and Apple's GPU reads the source when it comes to
it. CUDA has copied ordinary memory when it returns."""


def transfer(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy values to a device, behind what it has been asked for: plain ``to`` waits for that."""
    return values.to(device, non_blocking=torch.device(device).type not in _WAITS)
