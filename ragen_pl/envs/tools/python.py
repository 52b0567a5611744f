"""``Python``: programs that an agent writes, run in the sandbox."""

from __future__ import annotations

from ragen_pl.envs.sandbox import Limits, Reason, SandboxError, require_sandbox, run_python
from ragen_pl.envs.tools.schema import ToolSchema
from ragen_pl.envs.tools.toolbox import Toolbox, ToolUnavailableError

_MEBIBYTE = 1 << 20
_LONGEST_ERROR = 1000
_STOPPED = {
    Reason.TIME: "It was stopped: it took too long.",
    Reason.CPU: "It was stopped: it took too long.",
    Reason.OUTPUT: "It was stopped: it printed too much.",
    Reason.KILLED: "It was stopped: it crashed or took too much memory.",
}


class Python(Toolbox):
    """Programs of the agent, each run alone in the sandbox (``ragen_pl.envs.sandbox``): without
    network and files of this machine, with the standard library alone.

    Args:
        seconds: Seconds that a program may take.
        memory_mb: Mebibytes that it may use.
    """

    is_repeatable = False  # a program may read the clock, and each takes a tenth of a second

    def __init__(self, seconds: float = 5.0, memory_mb: int = 512) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds: {seconds} is not above 0")
        if memory_mb < 64:
            raise ValueError(f"memory_mb: {memory_mb} is less than 64, which Python itself needs")
        self._limits = Limits(
            seconds=seconds, cpu_seconds=max(1, round(seconds)), memory=memory_mb * _MEBIBYTE
        )

    def schemas(self) -> tuple[ToolSchema, ...]:
        """Return what the agent is told of the tool.

        Raises:
            ConfigError: if there is no sandbox here.
        """
        require_sandbox()
        return super().schemas()

    def python(self, code: str) -> str:
        """Run a Python program and return what it prints.

        Args:
            code: The program; it must print what is wanted.
        """
        try:
            outcome = run_python(code, "", self._limits)
        except SandboxError as error:
            raise ToolUnavailableError(f"the sandbox failed: {error}") from error
        parts = [outcome.stdout.rstrip()]
        if outcome.reason in _STOPPED:
            parts.append(_STOPPED[outcome.reason])
        elif outcome.exit:
            parts.append(outcome.stderr.strip()[-_LONGEST_ERROR:])
        return "\n".join(filter(None, parts)) or "It printed nothing."
