"""The run of one program in a sandbox, from start to the end of its last process."""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import IO

from ragen_pl.envs.sandbox.bubblewrap import Runner, command, python
from ragen_pl.envs.sandbox.outcome import Limits, ProgramResult, Reason, SandboxError
from ragen_pl.envs.sandbox.syscalls import syscall_filter
from ragen_pl.errors import ConfigError

_AT_ONCE = threading.BoundedSemaphore(max(2, os.cpu_count() or 2))
"""Programs of this process that run at one time: more would take each other's wall-clock time."""
_GRACE = 10.0
"""Seconds that the kernel has to end what was killed."""
_BLOCK = 1 << 16
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def run_python(source: str, stdin: str = "", limits: Limits | None = None) -> ProgramResult:
    """Run a program in the interpreter that runs this one, with the standard library alone.

    It returns when no process of the program is left. Programs wait for each other where more
    than the machine has cores are started at once.

    Args:
        source: The program.
        stdin: Its standard input.
        limits: What it may use.

    Raises:
        ConfigError: if there is no sandbox here; nothing is run outside one.
        SandboxError: if the sandbox fails, as where the machine is out of memory.
    """
    require_sandbox()
    return _run(python(), source, stdin, limits or Limits())


def run_file(runner: Runner, text: str, limits: Limits | None = None) -> ProgramResult:
    """Run another program on a file, as ``run_python`` runs the interpreter.

    Args:
        runner: The program, and what it sees.
        text: The text of the file.
        limits: What it may use.

    Raises:
        ConfigError: if there is no sandbox here; nothing is run outside one.
        SandboxError: if the sandbox fails, as where the machine is out of memory.
    """
    require_sandbox()
    return _run(runner, text, "", limits or Limits())


@lru_cache(maxsize=1)
def require_sandbox() -> None:
    """Check, once, that programs can be run in a sandbox here.

    Raises:
        ConfigError: if not; the message says what to install or to allow.
    """
    try:
        outcome = _run(python(), "print(input())", "ready", Limits())
        failure = "" if outcome.stdout == "ready\n" else outcome.stderr or outcome.reason
    except SandboxError as error:
        failure = str(error)
    if failure:
        raise ConfigError(
            f"untrusted programs run in a sandbox, and bwrap cannot make one: {failure.strip()}\n"
            "It needs namespaces: in a container, start it with --cap-add SYS_ADMIN --security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined; on a machine, allow user "
            "namespaces (sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 "
            "kernel.apparmor_restrict_unprivileged_userns=0). Programs are never run outside one."
        )


def _run(runner: Runner, source: str, stdin: str, limits: Limits) -> ProgramResult:
    with _AT_ONCE, ExitStack() as stack:
        program = stack.enter_context(_sealed(source.encode(errors="replace")))
        entered = stack.enter_context(_sealed(stdin.encode(errors="replace")))
        seccomp = stack.enter_context(_sealed(syscall_filter()))
        status_read, status = os.pipe()
        with os.fdopen(status_read, "rb") as report, os.fdopen(status, "wb") as end:
            deadline = time.monotonic() + limits.seconds
            process = subprocess.Popen(
                command(runner, limits, program, seccomp, status),
                stdin=entered,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(program, seccomp, status),
                env={},
                start_new_session=True,
            )
            end.close()
            assert process.stdout is not None
            assert process.stderr is not None
            streams = process.stdout, process.stderr
            try:
                stopped = _read(streams, kept := (bytearray(), bytearray()), limits, deadline)
            finally:
                _end(process, streams)
            found = _reported(report.read())
            if "child-pid" in found:
                _reap(found["child-pid"])
    stdout, stderr = (bytes(each[: limits.output]).decode(errors="replace") for each in kept)
    if stopped is not None:
        return ProgramResult(stdout, stderr, None, stopped)
    code = found.get("exit-code")
    if code is None:
        raise SandboxError(stderr.strip() or "the sandbox ended without a report")
    by_signal = code - 128 in signal.valid_signals()  # a program may also end with such a number
    reason = Reason.CPU if code == _CPU else Reason.KILLED if by_signal else Reason.EXITED
    return ProgramResult(stdout, stderr, code, reason)


_CPU = 128 + signal.SIGXCPU


@contextmanager
def _sealed(content: bytes) -> Iterator[int]:
    """Open a file in memory, at its beginning, that no one who gets it can change."""
    file = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(content)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _read(
    streams: tuple[IO[bytes], IO[bytes]],
    kept: tuple[bytearray, bytearray],
    limits: Limits,
    deadline: float,
) -> Reason | None:
    """Read until all ends are closed; return the limit that was reached before, or None."""
    with selectors.DefaultSelector() as selector:
        for stream, buffer in zip(streams, kept, strict=True):
            selector.register(stream, selectors.EVENT_READ, buffer)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return Reason.TIME
            for key, _ in selector.select(left):
                block = os.read(key.fd, _BLOCK)
                key.data.extend(block)
                if not block:
                    selector.unregister(key.fileobj)
                if len(key.data) > limits.output:
                    return Reason.OUTPUT
    return None


def _end(process: subprocess.Popen[bytes], streams: tuple[IO[bytes], IO[bytes]]) -> None:
    """Kill what is left of a program, and wait until all of it has ended.

    The first process of its namespace dies with bubblewrap, and the kernel ends the others with it.
    They hold the ends of the streams, which close with the last.
    """
    if process.poll() is None:
        process.kill()
    deadline = time.monotonic() + _GRACE
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if not os.read(key.fd, _BLOCK):
                    selector.unregister(key.fileobj)
    process.wait()
    for stream in streams:
        stream.close()


def _reported(report: bytes) -> dict[str, int]:
    """Return what bubblewrap reported, a JSON object a line: the first process, the exit code."""
    found: dict[str, int] = {}
    for line in report.splitlines():
        found |= {name: value for name, value in json.loads(line).items() if type(value) is int}
    return found


def _reap(process: int) -> None:
    """Take the exit status of the first process of a sandbox, which bubblewrap leaves to init.

    Where this process is init, as the first of a container is, it would stay a zombie.
    """
    with suppress(ChildProcessError):
        os.waitpid(process, 0)
