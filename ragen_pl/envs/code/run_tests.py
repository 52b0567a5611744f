"""The program that runs inside the sandbox and calls the agent's program, a process for each test.

It is run as a file of its own, not imported: it may use the standard library alone. It knows the
inputs of the tests but not their outputs, so that nothing the agent's program can do or read here
makes a wrong output right. Input and output are JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

_LONGEST_ERROR = 300
_NAME = "<program>"
_ENTERED, _PRINTED = Path("/tmp/entered"), Path("/tmp/printed")


def main() -> None:
    """Read a job from the standard input and print a report for each test, a line each."""
    job = json.loads(sys.stdin.buffer.read())
    for number in range(len(job["inputs"])):
        report = run_test(job, number)
        print(json.dumps(report), flush=True)
        if report["status"] == "time":  # the others would cost as much again
            break


def run_test(job: dict[str, Any], number: int) -> dict[str, Any]:
    """Run a test in a process of its own, and return its report."""
    path = Path(f"/tmp/report-{number}")
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            run(job, job["inputs"][number], path)
        finally:
            os._exit(0)
    status = wait(child, job["seconds"])
    if status is None:
        return {"status": "time"}
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    except (OSError, ValueError):
        report = None
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return {"status": "error", "error": f"the program crashed ({name})"}
    if not isinstance(report, dict) or report.get("status") not in ("value", "error"):
        return {"status": "error", "error": "the program ended before it returned"}
    return report


def wait(child: int, seconds: float) -> int | None:
    """Wait for a process and return its status; kill it and return None after the time limit."""
    deadline, pause = time.monotonic() + seconds, 0.0005
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run(job: dict[str, Any], given: Any, path: Path) -> None:
    """Run the program on an input and write what came of it."""
    try:
        reads = not job["entry"]
        redirect(given if reads else "", _PRINTED if reads else Path(os.devnull))
        value = call(job, given)
        if reads:
            sys.stdout.flush()
            value = _PRINTED.read_text(encoding="utf-8", errors="replace")
        text = reported(value, job["longest"])
    except BaseException as error:  # whatever the program raises is its result
        text = json.dumps({"status": "error", "error": described(error)})
    path.write_text(text, encoding="utf-8")


def reported(value: Any, longest: int) -> str:
    """Return the report on a value, of at most so many characters.

    Raises:
        ValueError: if it is longer.
        TypeError: if the value is no JSON.
    """
    text = json.dumps({"status": "value", "value": value})
    if len(text) > longest:
        raise ValueError("the output is too long")
    return text


def redirect(text: str, output: Path) -> None:
    """Put a text in the place of the standard input, and a file in that of the outputs."""
    _ENTERED.write_text(text, encoding="utf-8", errors="replace")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    entered, printed = os.open(_ENTERED, os.O_RDONLY), os.open(output, flags, 0o600)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for file_descriptor, standard in ((entered, 0), (printed, 1), (nowhere, 2)):
        os.dup2(file_descriptor, standard)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)


def call(job: dict[str, Any], given: Any) -> Any:
    """Run the program and, if it defines a function, return what the function returns."""
    reads = not job["entry"]
    names = module("__main__" if reads else "program")
    sys.argv = [_NAME]
    if job["before"]:
        execute(job["before"], names)
    try:
        execute(job["program"], names, _NAME)
    except SystemExit:
        if not reads:
            raise
    if reads:
        return None
    function = find(names, job["entry"])
    if job["check"]:
        execute(job["check"], names)  # it may call what stands before the program, too
        names["check"](function)
        return True
    if isinstance(given, dict):
        return function(**given)
    return function(*given)


def module(name: str) -> dict[str, Any]:
    """Return the names of an empty module that can be imported, as dataclasses and pickle do with
    the module of a class."""
    made = sys.modules[name] = types.ModuleType(name)
    return made.__dict__


def execute(text: str, names: dict[str, Any], file: str = "<string>") -> None:
    """Run a program in a module, without the ``__future__`` of this file."""
    exec(compile(text, file, "exec", dont_inherit=True), names)


def find(names: dict[str, Any], entry: str) -> Any:
    """Return the function of a name, or the method of that name of a class ``Solution``."""
    if entry in names:
        return names[entry]
    if "Solution" in names and hasattr(names["Solution"], entry):
        return getattr(names["Solution"](), entry)
    raise NameError(f"the program defines no function {entry}")


def described(error: BaseException) -> str:
    """Describe an error: the line of the program, the type and the message."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        line = frame.lineno if frame.filename == _NAME else line
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    where = "" if line is None else f"line {line}: "
    kind = type(error).__name__
    return f"{where}{kind}{': ' if message else ''}{message}"[:_LONGEST_ERROR]


if __name__ == "__main__":
    main()
