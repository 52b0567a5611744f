"""What a sandboxed program may use, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

MEBIBYTE = 1 << 20


class SandboxError(RuntimeError):
    """A failure of the sandbox itself, which says nothing about the program."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use; its processes take at most ``processes`` × ``memory`` together.

    Args:
        seconds: Wall-clock time, the start of the interpreter included (0.05 to 0.1 s).
        cpu_seconds: Processor time of each process.
        memory: Bytes of address space of each process.
        processes: Processes and threads at one time, the first included.
        file_size: Bytes of the largest file.
        disk: Bytes of all files together; they are kept in memory and gone at the end.
        output: Bytes of the standard output, and as many of the standard error.
    """

    seconds: float = 10.0
    cpu_seconds: int = 5
    memory: int = 512 * MEBIBYTE
    processes: int = 4
    file_size: int = 16 * MEBIBYTE
    disk: int = 64 * MEBIBYTE
    output: int = 64 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name}: {getattr(self, field.name)} is not above 0")


class Reason(StrEnum):
    """Why a program ended."""

    EXITED = "exited"
    """It ended by itself, with or without an error."""
    KILLED = "killed"
    """A signal ended it, such as a crash of the interpreter."""
    CPU = "cpu"
    """It used up ``cpu_seconds``."""
    TIME = "time"
    """It used up ``seconds``."""
    OUTPUT = "output"
    """It wrote more than ``output``."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What became of a program."""

    stdout: str
    """At most ``Limits.output`` bytes; what is no UTF-8 is replaced."""
    stderr: str
    """Likewise."""
    exit: int | None
    """The exit code; 128 and the signal's number after a signal; None if it was stopped here."""
    reason: Reason
