"""The memory of some devices."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30

_CUDA_RUNTIME = GIB // 2
"""A CUDA context and its libraries' workspaces; observed on several cards, not exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The memory of one device.

    Args:
        memory: Bytes of the device that a process can use.
        runtime: Bytes of it that the process occupies before it has any tensor.
        source: Where the figures come from.
    """

    memory: int
    runtime: int
    source: str


DEVICES = {
    "h100": Device(memory=80 * GIB, runtime=_CUDA_RUNTIME, source="NVIDIA H100 SXM5 data sheet"),
    "h200": Device(memory=140 * GIB, runtime=_CUDA_RUNTIME, source="NVIDIA H200 SXM data sheet"),
    "a100": Device(
        memory=80 * GIB, runtime=_CUDA_RUNTIME, source="NVIDIA A100 SXM 80 GB data sheet"
    ),
    "24gb": Device(
        memory=24 * GIB, runtime=_CUDA_RUNTIME, source="such as NVIDIA GeForce RTX 4090"
    ),
    "cpu": Device(memory=24 * GIB, runtime=GIB // 2, source="assumed"),
}
"""Devices by the name that ``--device`` takes."""
