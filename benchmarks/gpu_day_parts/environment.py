"""Versions, devices, and the packages that are not installed."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from importlib import metadata

from benchmarks.gpu_day_parts.catalog import COMMAND
from benchmarks.gpu_day_parts.part import Day, Record, SkipPart

_VERSIONS = (
    *("torch", "transformers", "lightning", "peft", "jsonargparse", "gymnasium", "tokenizers"),
    *("numpy", "triton", "vllm", "trl", "pytest"),
)
_OPTIONAL = {"vllm": "the part vllm", "trl": "TRL in the parts beside_*"}


def run(day: Day, record: Record) -> None:
    """Record what is here, and what is missing."""
    record.note(f"Python {platform.python_version()} on {platform.platform()}")
    record.note(f"{os.cpu_count()} cores")
    record.note(", ".join(f"{name} {_version(name)}" for name in _VERSIONS))
    missing = [name for name in COMMAND if importlib.util.find_spec(name) is None]
    if missing:
        record.note(f"MISSING, and needed by most parts: pip install {' '.join(missing)}")
    for name, what in _OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            record.note(f"{name} is not installed: without {what}")
    record.figure("environment/missing_packages", len(missing))
    driver = shutil.which("nvidia-smi")
    if driver is not None:
        query = "--query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit"
        done = subprocess.run(
            [driver, query, "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        record.note(f"nvidia-smi: {(done.stdout or done.stderr).strip()}")
    if importlib.util.find_spec("torch") is None:
        raise SkipPart("not installed: torch")
    _describe_device(day, record)


def _describe_device(day: Day, record: Record) -> None:
    import torch

    from benchmarks.gpu_day_parts.device import open_device

    device = open_device(day)
    record.note(f"device {device}")
    if device.type != "cuda":
        return
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    has_flash = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    record.note(
        f"{torch.cuda.device_count()} CUDA devices, {properties.name}, CUDA {torch.version.cuda}, "
        f"cuDNN {cudnn}, {properties.multi_processor_count} processors, "
        f"capability {properties.major}.{properties.minor}"
    )
    record.note(
        f"float32 products: {torch.get_float32_matmul_precision()} (highest: no TF32), flash "
        f"attention {'on' if has_flash else 'off'}"
    )
    record.figure("environment/devices", torch.cuda.device_count())
    record.figure("environment/memory", total / 2**30, "GiB")
    record.figure("environment/free_memory", free / 2**30, "GiB")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "–"
