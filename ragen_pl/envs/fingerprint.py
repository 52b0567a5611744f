"""The fingerprint of an environment's code, which tells whether it was edited between two runs."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ragen_pl.envs.base import TextEnv


def code_fingerprint(env: TextEnv) -> str:
    """Return a hash of the files of an environment's class and its parents, and of the modules of
    the same package that these use directly; empty if there are no files, as in a notebook."""
    files = {path for module in _modules(type(env)) if (path := _file(module)) is not None}
    contents = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(contents).encode()).hexdigest()[:16] if contents else ""


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
