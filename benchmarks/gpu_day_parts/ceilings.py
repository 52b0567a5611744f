"""What the device can do at most: copies, and matrix products of many and of few rows."""

from __future__ import annotations

import torch

from benchmarks.gpu_day_parts.device import open_device, peak_operations
from benchmarks.gpu_day_parts.part import Day, Record
from benchmarks.roofline import copy_bandwidth, gemm_rate
from benchmarks.workload import MODELS

ROWS = (1, 16, 64, 256, 2048, 8192)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def run(day: Day, record: Record) -> None:
    """Measure the ceilings."""
    device, name = open_device(day), str(open_device(day))
    peak = peak_operations(device)
    model, mebibytes = (MODELS["tiny"], 4) if day.tiny else (MODELS["7b"], 4096)
    record.figure("ceilings/copy", copy_bandwidth(name, mebibytes) / 1e9, "GB/s")
    for dtype_name, dtype in DTYPES.items():
        for rows in ROWS[:3] if day.tiny else ROWS:
            rate = gemm_rate(model, rows, dtype, name)
            record.figure(f"ceilings/{dtype_name}/{rows}_rows", rate / 1e12, "TFLOP/s")
            if peak is not None and dtype is torch.bfloat16 and rows == ROWS[-1]:
                record.figure("ceilings/of_the_data_sheet", rate / peak)
