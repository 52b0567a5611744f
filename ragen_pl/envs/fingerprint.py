"""Fingerprints of an environment's code and of its files of data, which tell whether they were
edited between two runs."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ragen_pl.envs.base import TextEnv

_BLOCK = 1 << 20
"""Bytes that are read at once."""


def code_fingerprint(env: TextEnv) -> str:
    """Return a hash of the files of an environment's class and its parents, and of the modules of
    the same package that these use directly; empty if there are no files, as in a notebook."""
    files = {path for module in _modules(type(env)) if (path := _file(module)) is not None}
    contents = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(contents).encode()).hexdigest()[:16] if contents else ""


def file_fingerprint(path: Path) -> str:
    """Return a file's number of lines and a hash of it, such as ``60:3f0c52d1a7b94e68``."""
    digest, lines, last = hashlib.sha256(), 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            lines, last = lines + block.count(b"\n"), block[-1:]
    lines += last != b"\n"
    return f"{lines}:{digest.hexdigest()[:16]}"


def _modules(kind: type) -> Iterator[ModuleType]:
    for parent in kind.__mro__[: kind.__mro__.index(TextEnv)]:
        module = sys.modules.get(parent.__module__)
        if module is None:
            continue
        yield module
        package = module.__name__.rpartition(".")[0]
        for value in vars(module).values():
            name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
            if package and isinstance(name, str) and name.startswith(f"{package}."):
                yield sys.modules.get(name, module)


def _file(module: ModuleType) -> Path | None:
    name = getattr(module, "__file__", None)
    path = None if name is None else Path(name)
    return path if path is not None and path.suffix == ".py" and path.is_file() else None
