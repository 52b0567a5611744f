"""The import of optional packages, which extras install."""

from __future__ import annotations

import importlib
from typing import Any

from ragen_pl.errors import ConfigError


def load(module: str, adapter: str, extra: str = "envs") -> Any:
    """Import a module of an optional package.

    Args:
        module: Dotted name of the module.
        adapter: The class that needs it, for the message.
        extra: The extra that installs it, for the message.

    Raises:
        ConfigError: if the package is not installed; the message names the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package and not module.startswith(f"{error.name}."):
            raise  # the package is there, and one that it needs is not
        raise ConfigError(
            f"{adapter} needs the package {package}, which is not installed: run "
            f"pip install -c constraints.txt -e '.[{extra}]'"
        ) from error
