"""The import of optional packages, which extras install."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ragen_pl.errors import ConfigError


def load(module: str, adapter: str, extra: str = "envs") -> Any:
    """Import a module of an optional package.

    Args:
        module: Dotted name of the module.
        adapter: What needs it, for the message: a class, or a command.
        extra: The extra that installs it.

    Raises:
        ConfigError: if the package is not installed; the message names the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package and not module.startswith(f"{error.name}."):
            raise  # the package is there, and one that it needs is not
        raise _missing(package, adapter, extra) from error


def folder_of(package: str, adapter: str) -> Path:
    """Return the folder of an optional package whose files are read, without importing it.

    Raises:
        ConfigError: if the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise _missing(package, adapter, "envs")
    return Path(spec.origin).parent


def _missing(package: str, adapter: str, extra: str) -> ConfigError:
    return ConfigError(
        f"{adapter} needs the package {package}, which is not installed: run "
        f"pip install -c constraints.txt -e '.[{extra}]'"
    )
