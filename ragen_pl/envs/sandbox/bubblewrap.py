"""The command that runs a program in a sandbox: bubblewrap, an unprivileged user, and limits.

The program sees ``/usr``, the interpreter, the folders that it names and an empty ``/tmp``, all but
the last read-only; it has no other files, no network, no environment variables of the host and no
packages but the standard library. ``/proc`` is there for programs that need it, and shows none but
their own processes. Its processes are in a namespace of their own, which ends with the first.

Root could exceed the limit of processes, so a sandbox that root starts gives its rights away for
those of a user of its own before the limits are set. Other users need namespaces for unprivileged
users, which most distributions allow.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ragen_pl.envs.sandbox.outcome import Limits
from ragen_pl.errors import ConfigError

_NOBODY = 65534
_FIRST_USER, _USERS = 30_000, 30_000
_serial = itertools.count(os.getpid() * 101)
_VARIABLES = {
    "PATH": "/usr/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment variables of the program. A fixed hash seed makes the order of sets repeat."""


@dataclass(frozen=True, slots=True)
class Runner:
    """What runs a file in a sandbox: an interpreter, a compiler, a proof assistant."""

    words: tuple[str, ...]
    """The command line, without the file, which comes last."""
    file: str
    """Path of the file inside."""
    folders: tuple[Path, ...] = ()
    """Folders of the host that it sees besides ``/usr``, read-only and under the same paths."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables besides the usual ones."""
    needs_proc: bool = False
    """Whether it needs ``/proc``, as programs do that look for their own folder."""


def python() -> Runner:
    """Return the interpreter that runs this one, with the standard library alone."""
    return Runner((str(_interpreter()), "-P", "-s"), "/program.py")


@lru_cache(maxsize=1)
def tools() -> tuple[str, str, str]:
    """Return the paths of bubblewrap, ``prlimit`` and ``setpriv``.

    Raises:
        ConfigError: if one is missing.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"untrusted programs run in a sandbox that needs Linux, and this is {sys.platform}: "
            "run environments that execute programs in a Linux machine or container"
        )
    found = [shutil.which(name, path="/usr/bin:/bin") for name in ("bwrap", "prlimit", "setpriv")]
    for name, package, path in zip(
        ("bwrap", "prlimit", "setpriv"),
        ("bubblewrap", "util-linux", "util-linux"),
        found,
        strict=True,
    ):
        if path is None:
            raise ConfigError(
                f"untrusted programs run in a sandbox that needs {name}, which is not installed, "
                f"and never outside one: apt-get install {package} (dnf install {package})"
            )
    bwrap, prlimit, setpriv = map(str, found)
    return bwrap, prlimit, setpriv


def command(runner: Runner, limits: Limits, program: int, seccomp: int, status: int) -> list[str]:
    """Return the command line that runs a file.

    Args:
        runner: What runs it.
        limits: What the program may use.
        program: File descriptor to read the file from.
        seccomp: File descriptor to read the filter of system calls from.
        status: File descriptor to report the exit code to.
    """
    bwrap, prlimit, setpriv = tools()
    is_root = os.geteuid() == 0
    user = _FIRST_USER + next(_serial) % _USERS
    line = [bwrap, "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    line += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--json-status-fd", str(status), "--seccomp", str(seccomp)]
    if is_root:
        line += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        line += ["--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY)]
    for name, value in {**_VARIABLES, **runner.variables}.items():
        line += ["--setenv", name, value]
    line += _files()
    line += ["--perms", "0444", "--ro-bind-data", str(program), runner.file]
    line += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    line += _shown(runner.folders)
    line += ["--proc", "/proc"] if runner.needs_proc else []
    line += ["--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/", "--"]
    if is_root:
        line += [setpriv, f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        line += ["--inh-caps=-all", "--no-new-privs", "--"]
    line += [prlimit, f"--as={limits.memory}", f"--nproc={limits.processes}"]
    line += [f"--cpu={limits.cpu_seconds}:{limits.cpu_seconds + 1}", f"--fsize={limits.file_size}"]
    line += ["--nofile=64", "--core=0", "--memlock=0", "--msgqueue=0", "--"]
    return [*line, *runner.words, runner.file]


def _interpreter() -> Path:
    return Path(sys.executable).resolve()


@lru_cache(maxsize=1)
def _files() -> tuple[str, ...]:
    """Return the options that show the system and the interpreter, and hide installed packages."""
    line = ["--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib32", "lib64", "bin"):
        path = Path("/", name)
        if path.is_symlink():
            line += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            line += ["--ro-bind", str(path), str(path)]
    line += ["--perms", "0755", "--dir", "/etc"]
    line += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    prefix, version = Path(sys.base_prefix).resolve(), "python{}.{}".format(*sys.version_info)
    if not _interpreter().is_relative_to("/usr"):
        libraries = (prefix / "lib" / version, *(prefix / "lib").glob("libpython*"))
        line += _shown((_interpreter(), *libraries))
    packages = [prefix / "lib" / version / "site-packages", Path("/usr/lib/python3/dist-packages")]
    packages += [Path("/usr/local/lib", version, each) for each in _PACKAGES]
    for path in dict.fromkeys(packages):
        if path.is_dir():
            line += ["--size", "4096", "--tmpfs", str(path), "--remount-ro", str(path)]
    return tuple(line)


def _shown(paths: Sequence[Path]) -> list[str]:
    """Return the options that show files and folders where they are on the host."""
    line = []
    outside = sorted(path for path in set(paths) if not path.is_relative_to("/usr"))
    folders = {each for path in outside for each in path.parents} - {Path("/"), Path("/tmp")}
    for folder in sorted(folders):  # made here, or no one but root could enter them
        line += ["--perms", "0755", "--dir", str(folder)]
    for path in outside:
        line += ["--ro-bind", str(path), str(path)]
    return line


_PACKAGES = ("site-packages", "dist-packages")
