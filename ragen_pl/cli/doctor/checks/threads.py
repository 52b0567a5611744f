"""Threads: how they wait, how many cores there are, what else runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.findings import Finding, ok, warning
from ragen_pl.runtime.threads import fixed_threads, usable_cores
from ragen_pl.runtime.wait_policy import describe_waiting

_LONG_SPIN = 100_000
"""Spins that take several milliseconds, in which other programs need the core."""


def check_threads(subject: ExaminedRun) -> Iterator[Finding]:
    """Warn of threads that spin while they wait, and of more threads than cores."""
    cores, spinning = usable_cores(), _spinning()
    if spinning:
        yield warning(
            f"threads spin while they wait ({spinning}): on a busy machine an iteration takes "
            "many times as long",
            f"unset {spinning.partition('=')[0]}; the command then lets threads spin briefly",
        )
        return
    setting = subject.parts.config["fit"].threads if "parts" in subject.made else "auto"
    fixed = fixed_threads(setting)
    if fixed is not None and fixed > cores:
        yield warning(
            f"{fixed} threads are set on {cores} cores: they wait for one another",
            "set --threads auto, or unset OMP_NUM_THREADS",
        )
        return
    words = [f"{cores} cores", describe_waiting()]
    total = os.cpu_count() or cores
    if cores < total:
        words[0] = f"{cores} of {total} cores by this process's affinity"
    words.append("threads auto" if fixed is None else f"threads {fixed}")
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > 0.5 * cores:
        words.append(f"busy: load {load:.1f}, so that times are longer than on a quiet machine")
    yield ok("; ".join(words))


def _spinning() -> str:
    """Return the setting that lets threads spin for long; empty if there is none."""
    policy = os.environ.get("OMP_WAIT_POLICY", "")
    if policy.upper() == "ACTIVE":
        return f"OMP_WAIT_POLICY={policy}"
    spins = os.environ.get("GOMP_SPINCOUNT", "")
    if spins.upper() in ("INFINITE", "INFINITY") or (spins.isdigit() and int(spins) > _LONG_SPIN):
        return f"GOMP_SPINCOUNT={spins}"
    block = os.environ.get("KMP_BLOCKTIME", "")
    return f"KMP_BLOCKTIME={block}" if block.lower() == "infinite" else ""
