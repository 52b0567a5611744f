"""Parse a command with short errors, a class's own arguments, and loggers in the run folder."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from jsonargparse import Namespace, _typehints
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger

from ragen_pl.cli.config_files import same_class
from ragen_pl.cli.messages import shorten
from ragen_pl.errors import ConfigError

RUN_DIR = "<run_dir>"
"""Stands for the run's folder where a logger is told of none; known once all is parsed."""
_FOLDER_KEYS = ("save_dir", "dir")
"""What loggers call the folder they write to; the first that a class has."""
_ON_CLASS_CHANGE = "discard_init_args_on_class_path_change"
"""The parser's function that decides what outlives a change of class."""


class Parser(LightningArgumentParser):
    """Raise short errors in the place of a page of usage."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a parser within another: the outer one reports
            super().error(message, ex)
        raise ConfigError(shorten(message)) from ex

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add a constructor's arguments; a logger's folder is by default the run's."""
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        if inspect.isclass(theclass) and issubclass(theclass, Logger):
            own = [key for key in _FOLDER_KEYS if key in added][:1]
            self.set_defaults(dict.fromkeys(own, RUN_DIR))
        return added

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse a command line; where a class changes, its arguments start at their defaults."""
        with _arguments_of_their_class():
            return super().parse_args(*args, **kwargs)


@contextmanager
def _arguments_of_their_class() -> Iterator[None]:
    """Let a newly chosen class start with its own defaults.

    jsonargparse hands it every argument of the class before that it has, too, defaults included,
    and has no setting to say otherwise: the function that chooses them is replaced meanwhile.
    """
    kept = getattr(_typehints, _ON_CLASS_CHANGE)
    setattr(_typehints, _ON_CLASS_CHANGE, _start_afresh)
    try:
        yield
    finally:
        setattr(_typehints, _ON_CLASS_CHANGE, kept)


def _start_afresh(_: object, old: Any, new: Any) -> None:
    """Drop from a ``class_path`` entry, in place, what another class does not take over."""
    named = old.get("class_path") if old else None  # none for a dataclass, which has no others
    if named is not None and not same_class(named, new["class_path"]):
        for key in ("init_args", "dict_kwargs"):
            old.pop(key, None)


def place_loggers(loggers: Any, run_dir: str) -> None:
    """Write the run's folder, in place, into loggers' configurations where it stands for itself."""
    for entry in loggers if isinstance(loggers, list) else [loggers]:
        arguments = entry.get("init_args") if isinstance(entry, Namespace) else None
        for key in _FOLDER_KEYS:
            if arguments is not None and arguments.get(key) == RUN_DIR:
                arguments[key] = run_dir
