"""The planned peak of memory beside the measured one, as ``planned_memory.py`` has it."""

from __future__ import annotations

from benchmarks.gpu_day_parts.part import Day, Record, SkipPart

CASES = ("0.5b", "1.5b-lora")
TINY = ("small",)


def run(day: Day, record: Record) -> None:
    """Train each case for two iterations, and compare its phases."""
    if day.kind not in ("cpu", "cuda"):
        raise SkipPart(f"the memory of device {day.device} cannot be read")
    # Slow to import, which a part that cannot run need not do.
    from benchmarks.gpu_day_parts.device import open_device
    from benchmarks.planned_memory import PHASES, compare

    device = open_device(day).type
    errors = []
    for case in TINY if day.tiny else CASES:
        found = compare([case], device)[case]
        for phase in PHASES:
            planned, measured = found["planned"][phase], found["measured"][phase]
            name = f"memory/{case}/{phase.replace(' ', '_')}"
            record.figure(f"{name}/planned", planned, "MiB")
            record.figure(f"{name}/measured", measured, "MiB")
        peaks = {side: max(found[side].values()) for side in ("planned", "measured")}
        ratio = peaks["planned"] / peaks["measured"]
        record.figure(f"memory/{case}/peak_ratio", ratio)
        errors.append(abs(ratio - 1))
        record.figure("memory/largest_error", max(errors))
