"""Know what some devices hold and do, from their makers' data sheets.

What a program reaches of those figures is a share, ``EFFICIENCY``; seconds that are planned with it
are an expectation to be off by half, where bytes are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Say which share of a device's figures a program reaches.

    Args:
        compute: Of its products; large training runs report 0.4 to 0.5 of the data sheet's (PaLM,
            arXiv 2204.02311, §4.1: 0.46).
        bandwidth: Of its memory's and its links' rate; assumed.
    """

    compute: float
    bandwidth: float


EFFICIENCY = Efficiency(compute=0.4, bandwidth=0.6)


@dataclass(frozen=True, slots=True)
class Device:
    """Hold the figures of one device.

    Args:
        memory: Bytes that a process can use of it.
        runtime: Bytes of it that the process holds before there is any tensor.
        compute: Multiplications and additions per second, dense, in bfloat16.
        bandwidth: Bytes per second of its memory.
        link: Bytes per second to another device of the node, in one direction.
        network: Bytes per second to another node, per device, in one direction.
        dispatch: Seconds that starting the operations of one layer takes, however small they are.
        source: Where the figures come from.
    """

    memory: int
    runtime: int
    compute: float
    bandwidth: float
    link: float
    network: float
    dispatch: float
    source: str


_CUDA = GIB // 2
"""What a CUDA context and its libraries' workspaces take; observed on several cards, not exact."""
_LAUNCH = 1e-3
"""Of a layer of transformers' eager models: some 30 tokens/s with 32 layers; assumed."""

DEVICES = {
    "h100": Device(
        *(80 * GIB, _CUDA, 989e12, 3.35e12, 450e9, 50e9, _LAUNCH),
        "NVIDIA H100 SXM5 data sheet; NDR InfiniBand, 400 Gb/s per device",
    ),
    "h200": Device(
        *(140 * GIB, _CUDA, 989e12, 4.8e12, 450e9, 50e9, _LAUNCH),
        "NVIDIA H200 SXM data sheet; NDR InfiniBand, 400 Gb/s per device",
    ),
    "a100": Device(
        *(80 * GIB, _CUDA, 312e12, 2.04e12, 300e9, 25e9, _LAUNCH),
        "NVIDIA A100 SXM 80 GB data sheet; HDR InfiniBand, 200 Gb/s per device",
    ),
    "24gb": Device(
        *(24 * GIB, _CUDA, 165e12, 1.01e12, 32e9, 1.25e9, _LAUNCH),
        "NVIDIA GeForce RTX 4090 (Ada whitepaper); PCIe 4.0 x16; 10 Gb/s Ethernet",
    ),
    "cpu": Device(
        *(24 * GIB, GIB // 2, 0.2e12, 20e9, 5e9, 1.25e9, 3e-4),
        "two cores of a server with AVX-512; rounded guesses",
    ),
}
