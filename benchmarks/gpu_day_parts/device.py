"""The device that a part computes on."""

from __future__ import annotations

import importlib

import torch

from benchmarks.gpu_day_parts.part import Day, SkipPart

_OURS = ("cuda", "cpu")
"""Devices that PyTorch knows without help."""
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16 operations per second by the data sheets, by a word of the device's name."""


def open_device(day: Day) -> torch.device:
    """Return the day's device, made known to PyTorch where it has to be.

    Raises:
        SkipPart: where there is no such device.
    """
    if day.accelerator is not None:
        importlib.import_module(day.accelerator.rpartition(".")[0])
    elif day.kind not in _OURS:
        raise SkipPart(f"device {day.device} needs --accelerator")
    if day.kind == "cuda" and not torch.cuda.is_available():
        raise SkipPart("PyTorch finds no CUDA device here")
    return torch.device(day.device)


def has_autocast(device: torch.device) -> bool:
    """Return whether products can be taken in bfloat16 under autocast: not on a device of its
    own."""
    return device.type in _OURS


def peak_operations(device: torch.device) -> float | None:
    """Return the device's bfloat16 operations per second by its data sheet; None if unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for word, peak in PEAKS.items() if word in name), None)
