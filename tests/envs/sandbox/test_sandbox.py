"""What the sandbox stops, what it leaves alone, and what is left behind: nothing."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ragen_pl.envs.sandbox import (
    Limits,
    Reason,
    Runner,
    require_sandbox,
    run_file,
    run_python,
)
from ragen_pl.envs.sandbox import bubblewrap as command_line
from ragen_pl.envs.sandbox import run as running
from ragen_pl.errors import ConfigError
from tests.support.extras import need_sandbox

need_sandbox()

MEBIBYTE = 1 << 20
SHORT = Limits(seconds=1.0, cpu_seconds=1)
_SUBREAPER = 36


def descendants(process: int) -> set[int]:
    """List the processes below one."""
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = {int(number) for number in task.read_text().split()}
        except FileNotFoundError:
            continue
        for child in children:
            found |= {child, *descendants(child)}
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Become the parent of whatever loses its own, and check that there is nothing."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    before, files = descendants(os.getpid()), open_files()
    yield
    deadline = time.monotonic() + 5
    while (left := descendants(os.getpid()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)
    assert not [Path(f"/proc/{each}/stat").read_text() for each in left]
    assert open_files() == files


def test_a_program_reads_and_prints() -> None:
    outcome = run_python(
        "import sys\nprint(input() * 2)\nprint('ß', file=sys.stderr)\nexit(3)", "ab"
    )
    assert (outcome.stdout, outcome.stderr) == ("abab\n", "ß\n")
    assert (outcome.exit, outcome.reason) == (3, Reason.EXITED)


def test_equal_programs_print_the_same() -> None:
    program = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    assert run_python(program).stdout == run_python(program).stdout


FORKS = """
import os
import subprocess
import sys
n = 0
try:
    while True:
        if os.fork() == 0:
            import time
            time.sleep(60)
        n += 1
except OSError:
    print(n)
"""
BOMB = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"


def test_processes_are_limited() -> None:
    outcome = run_python(FORKS, limits=Limits(processes=4))
    assert outcome.stdout == "3\n", outcome.stderr
    assert run_python(FORKS, limits=Limits(processes=9)).stdout == "8\n"


def test_a_fork_bomb_ends() -> None:
    assert run_python(BOMB, limits=SHORT).reason in (Reason.CPU, Reason.TIME)


def test_memory_is_limited() -> None:
    outcome = run_python("x = bytearray(3 << 30)")
    assert outcome.exit == 1
    assert "MemoryError" in outcome.stderr
    assert run_python("x = bytearray(300 << 20); print(1)").stdout == "1\n"


WRITE = """
import os
import subprocess
import sys
size = 0
try:
    for number in range({files}):
        with open(f"/tmp/{{number}}", "wb") as file:
            for _ in range({blocks}):
                size += file.write(bytes(1 << 20))
except OSError as error:
    pass
print(size >> 20)
"""


def test_files_are_limited() -> None:
    limits = Limits(file_size=4 * MEBIBYTE, disk=8 * MEBIBYTE)
    assert int(run_python(WRITE.format(files=1, blocks=5000), limits=limits).stdout) <= 4
    assert int(run_python(WRITE.format(files=100, blocks=1), limits=limits).stdout) <= 8
    assert int(run_python(WRITE.format(files=2, blocks=3), limits=limits).stdout) == 6


def test_no_file_outlives_its_program() -> None:
    run_python("open('/tmp/left', 'w').write('x')")
    assert run_python("import os; print(os.listdir('/tmp'))").stdout == "[]\n"
    assert not Path("/tmp/left").exists()


@pytest.mark.parametrize("path", ["/x", "/dev/x", "/dev/shm/x", "/usr/x", "/etc/x", "/program.py"])
def test_nothing_but_tmp_is_written(path: str) -> None:
    outcome = run_python(f"open({path!r}, 'w').write('x')")
    assert outcome.exit == 1
    assert "OSError" in outcome.stderr or "Error: [Errno" in outcome.stderr


def test_the_host_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    monkeypatch.setenv("SECRET", "a secret")
    monkeypatch.chdir(tmp_path)
    program = f"""
import os
import subprocess
import sys
for path in ("/etc/shadow", "/etc/passwd", {str(secret)!r}, "secret.txt", {__file__!r},
             "/proc/self/environ", "/proc/1/environ", "/sys/kernel", "/home", "/var", "/run"):
    print(path, os.path.exists(path))
print(os.environ.get("SECRET"), os.getcwd())
"""
    lines = run_python(program).stdout.splitlines()
    assert lines[-1] == "None /tmp"
    assert len(lines) == 12
    assert all(line.endswith("False") for line in lines[:-1]), lines


def test_no_descriptor_of_the_host_is_inherited() -> None:
    program = """
import os
import subprocess
import sys
for each in range(3, 256):
    try:
        os.fstat(each)
        print(each)
    except OSError:
        pass
"""
    with Path(__file__).open():
        assert run_python(program).stdout == ""


def test_standard_input_and_program_cannot_be_changed() -> None:
    program = "import os\ntry:\n    os.write(0, b'x')\nexcept OSError as e: print(type(e).__name__)"
    assert run_python(program, "given").stdout == "PermissionError\n"


def test_there_is_no_network() -> None:
    program = "import socket; socket.create_connection(('127.0.0.1', 22), timeout=2)"
    assert "PermissionError" in run_python(program).stderr
    program = "import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)"
    assert "PermissionError" in run_python(program).stderr


def test_system_calls_around_the_limits_are_refused() -> None:
    program = """
import ctypes
library = ctypes.CDLL(None, use_errno=True)
for name, arguments in {
    "unshare": (0x10000000,),
    "shmget": (0, 1 << 30, 0o1600),
    "memfd_create": (b"x", 0),
    "ptrace": (0, 0, 0, 0),
    "mount": (b"x", b"/tmp", b"tmpfs", 0, b""),
    "setuid": (0,),
}.items():
    print(name, getattr(library, name)(*arguments), ctypes.get_errno())
"""
    lines = run_python(program).stdout.splitlines()
    refused = [line.split()[1:] for line in lines[:5]]
    assert refused == [["-1", "1"]] * 5, lines
    assert lines[5].split()[1] == "-1" or os.geteuid() != 0


def test_an_endless_loop_ends() -> None:
    outcome = run_python("while True: pass", limits=SHORT)
    assert outcome.reason in (Reason.CPU, Reason.TIME)  # the second where the machine is busy
    begin = time.monotonic()
    outcome = run_python("import time; time.sleep(60)", limits=Limits(seconds=0.5))
    assert (outcome.exit, outcome.reason) == (None, Reason.TIME)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_ends(stream: str) -> None:
    program = f"import sys\nwhile True: print('x' * 999, file=sys.{stream})"
    outcome = run_python(program, limits=Limits(output=5000))
    assert (outcome.exit, outcome.reason) == (None, Reason.OUTPUT)
    assert len(getattr(outcome, stream)) == 5000


def test_processes_outside_cannot_be_reached() -> None:
    program = f"""
import os
import subprocess
import sys
for process in (1, os.getppid(), -1, {os.getpid()}):
    try:
        os.kill(process, 9)
    except OSError:
        pass
print("on")
"""
    assert run_python(program).stdout in ("on\n", "")


def test_what_is_left_in_the_background_ends_with_the_program() -> None:
    program = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('end')"
    )
    begin = time.monotonic()
    assert run_python(program).stdout == "end\n"
    assert time.monotonic() - begin < 20


def test_a_signal_is_told_apart() -> None:
    outcome = run_python("import os; os.kill(os.getpid(), 11)")
    assert (outcome.exit, outcome.reason) == (139, Reason.KILLED)
    outcome = run_python("import os; os._exit(200)")  # the number of no signal
    assert (outcome.exit, outcome.reason) == (200, Reason.EXITED)


def test_installed_packages_are_hidden() -> None:
    assert "ModuleNotFoundError" in run_python("import numpy").stderr


def test_hostile_sources_are_answered() -> None:
    for source in ("", "\x00", "\ud800", "def", "(" * 5000):
        assert run_python(source).exit is not None


def test_programs_run_at_once() -> None:
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(run_python, [f"print({i})" for i in range(8)]))
    assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(8)]


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="memory: 0 is not above 0"):
        Limits(memory=0)


def test_without_bubblewrap_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_pl.envs.sandbox.bubblewrap.shutil.which", lambda name, path: None)
    for cached in (command_line.tools, running.require_sandbox):
        cached.cache_clear()
    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        run_python("print(1)")
    monkeypatch.undo()
    require_sandbox()


def test_where_namespaces_are_forbidden_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1")
    broken.chmod(0o755)
    found = (str(broken), *command_line.tools()[1:])
    monkeypatch.setattr(command_line, "tools", lambda: found)
    running.require_sandbox.cache_clear()
    with pytest.raises(ConfigError, match=r"No permissions(.|\n)*--cap-add SYS_ADMIN"):
        run_python("print(1)")
    monkeypatch.undo()
    require_sandbox()


@pytest.mark.run
def test_the_limits_hold_at_full_size() -> None:
    """The same as above with a bomb that also takes memory, and a file of five gigabytes."""
    bomb = "import os\nx = []\nwhile True:\n    try:\n        os.fork()\n"
    bomb += "        x.append(bytes(1 << 24))\n    except (OSError, MemoryError):\n        pass\n"
    assert run_python(bomb, limits=Limits(seconds=5)).reason in (Reason.CPU, Reason.TIME)
    outcome = run_python(WRITE.format(files=1, blocks=5 * 1024))
    assert int(outcome.stdout) <= 16
    for _ in range(20):
        assert run_python("print(1)").stdout == "1\n"


@pytest.mark.run
def test_a_program_ends_with_the_run_that_started_it() -> None:
    code = "from ragen_pl.envs.sandbox import require_sandbox, run_python\nrequire_sandbox()\n"
    code += "print('ready', flush=True)\nrun_python('import time; time.sleep(100)')"
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    run.stdout.close()
    deadline = time.monotonic() + 60
    while len(found := descendants(run.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(found) >= 3
    time.sleep(1)
    found = descendants(run.pid)
    run.kill()
    run.wait()
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for each in left:  # they are this process's now
            with suppress(ChildProcessError):
                os.waitpid(each, os.WNOHANG)
        time.sleep(0.01)
    assert not any(Path(f"/proc/{each}").exists() for each in found)


def test_another_program_sees_its_folders_and_its_own_processes(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "words").write_text("from the host", encoding="utf-8")
    report = (
        "import os, sys\n"
        "print(sys.argv[0], os.environ['LANGUAGE_PATH'], open(sys.argv[1]).read())\n"
        "print(all(int(p) < 20 for p in os.listdir('/proc') if p.isdigit()))\n"
        "try:\n    open(sys.argv[1], 'w')\nexcept OSError:\n    print('read-only')\n"
    )
    words = (str(Path(sys.executable).resolve()), "-c", f"exec(open({'/text.txt'!r}).read())")
    runner = Runner(
        (*words, str(tmp_path / "words")),
        "/text.txt",
        folders=(tmp_path,),
        variables={"LANGUAGE_PATH": "here"},
        needs_proc=True,
    )
    outcome = run_file(runner, report)
    assert outcome.stdout == "-c here from the host\nTrue\nread-only\n", outcome.stderr
    assert "KeyError" in run_file(Runner(words, "/text.txt"), report).stderr
