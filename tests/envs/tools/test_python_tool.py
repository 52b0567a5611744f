"""Programs of an agent, in the sandbox."""

from __future__ import annotations

import pytest

from ragen_pl.envs.sandbox import ProgramResult, Reason, SandboxError
from ragen_pl.envs.tools import Python, ToolUnavailableError
from ragen_pl.envs.tools import python as module
from ragen_pl.errors import ConfigError
from tests.support.extras import need_sandbox


def test_a_program_is_run_and_what_it_prints_is_returned() -> None:
    need_sandbox()
    tool = Python(seconds=2.0)
    assert tool.call("python", {"code": "print(2**10)\n"}) == "1024"
    assert tool.call("python", {"code": "x = 1"}) == "It printed nothing."
    assert tool.call("python", {"code": "print(1)\n1/0"}).startswith("1\nTraceback")


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (ProgramResult("a\n", "", 0, Reason.EXITED), "a"),
        (ProgramResult("a\n", "warned", 0, Reason.EXITED), "a"),
        (ProgramResult("", "oh\n", 1, Reason.EXITED), "oh"),
        (ProgramResult("a", "", None, Reason.TIME), "a\nIt was stopped: it took too long."),
        (ProgramResult("", "", 152, Reason.CPU), "It was stopped: it took too long."),
        (
            ProgramResult("a" * 9, "", None, Reason.OUTPUT),
            "aaaaaaaaa\nIt was stopped: it printed too much.",
        ),
    ],
)
def test_every_end_is_told(
    monkeypatch: pytest.MonkeyPatch, outcome: ProgramResult, text: str
) -> None:
    monkeypatch.setattr(module, "run_python", lambda *_: outcome)
    assert Python().python("x") == text


def test_a_sandbox_that_fails_is_no_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ProgramResult:
        raise SandboxError("no memory")

    monkeypatch.setattr(module, "run_python", fail)
    with pytest.raises(ToolUnavailableError, match="the sandbox failed: no memory"):
        Python().python("x")


def test_without_a_sandbox_the_tool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigError("no bwrap")

    monkeypatch.setattr(module, "require_sandbox", refuse)
    with pytest.raises(ConfigError, match="no bwrap"):
        Python().schemas()


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="seconds: 0 is not above 0"):
        Python(seconds=0)
    with pytest.raises(ValueError, match="memory_mb: 8 is less than 64"):
        Python(memory_mb=8)
