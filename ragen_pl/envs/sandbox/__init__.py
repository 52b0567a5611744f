"""A sandbox for untrusted programs: no network, no host files, bounded in everything.

May be imported by environments and tools; imports nothing of the library but its error.
"""

from ragen_pl.envs.sandbox.bubblewrap import Runner
from ragen_pl.envs.sandbox.outcome import Limits, ProgramResult, Reason, SandboxError
from ragen_pl.envs.sandbox.run import require_sandbox, run_file, run_python

__all__ = [
    "Limits",
    "ProgramResult",
    "Reason",
    "Runner",
    "SandboxError",
    "require_sandbox",
    "run_file",
    "run_python",
]
