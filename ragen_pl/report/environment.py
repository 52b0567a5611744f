"""Versions and machine of a run, recorded when it starts."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

from ragen_pl.report.run_data import ENVIRONMENT
from ragen_pl.runtime.durable_files import write_text
from ragen_pl.runtime.threads import usable_cores

_PACKAGES = (
    *("ragen-pl", "torch", "lightning", "transformers", "tokenizers", "peft", "torchmetrics"),
    *("gymnasium", "numpy", "jsonargparse", "tensorboard", "vllm"),
)


def describe_environment(num_processes: int) -> dict[str, str]:
    """Return versions and machine in words, by name."""
    found = {
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := _version(name))},
        "platform": platform.platform(),
        "processor": f"{platform.machine()}, {usable_cores()} cores",
        "processes": str(num_processes),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        memory = properties.total_memory / 2**30
        found["GPU"] = f"{properties.name}, {memory:.0f} GiB, CUDA {torch.version.cuda}"
    return found


def write_environment(run_dir: Path, num_processes: int) -> None:
    """Record versions and machine in a run folder; those of the latest start stay."""
    content = json.dumps(describe_environment(num_processes), indent=1)
    write_text(run_dir / ENVIRONMENT, content + "\n")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
