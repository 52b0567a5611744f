"""The command's parser: short errors, defaults of the chosen class, loggers in the run folder."""

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
"""Default folder of loggers: text that stands for the run's folder, which is known only after
parsing."""
_FOLDER_KEYS = ("save_dir", "dir")
"""Argument names for a logger's folder; the first one that a class has is used."""
_ON_CLASS_CHANGE = "discard_init_args_on_class_path_change"
"""The parser's function that decides which arguments a change of class keeps."""


class Parser(LightningArgumentParser):
    """A parser with short errors instead of a page of usage, and without abbreviated keys."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False  # or a key that lacks a letter would be taken for the whole one

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a nested parser: the outer one reports
            super().error(message, ex)
        raise ConfigError(shorten(message)) from ex

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add a constructor's arguments; a logger's default folder is the run's."""
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        if inspect.isclass(theclass) and issubclass(theclass, Logger):
            own = [key for key in _FOLDER_KEYS if key in added][:1]
            self.set_defaults(dict.fromkeys(own, RUN_DIR))
        return added

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse a command line; a class that replaces another starts from its own defaults."""
        with _arguments_of_their_class():
            return super().parse_args(*args, **kwargs)


@contextmanager
def _arguments_of_their_class() -> Iterator[None]:
    """Let a newly chosen class start from its own defaults.

    jsonargparse would keep every argument of the previous class that the new one has too, defaults
    included, and has no setting against that. The function that selects the arguments to keep is
    therefore replaced within the context.
    """
    kept = getattr(_typehints, _ON_CLASS_CHANGE)
    setattr(_typehints, _ON_CLASS_CHANGE, _start_afresh)
    try:
        yield
    finally:
        setattr(_typehints, _ON_CLASS_CHANGE, kept)


def _start_afresh(_: object, old: Any, new: Any) -> None:
    """Remove the previous class's arguments from a ``class_path`` entry, in place."""
    named = old.get("class_path") if old else None  # none for a dataclass, which has no others
    if named is not None and not same_class(named, new["class_path"]):
        for key in ("init_args", "dict_kwargs"):
            old.pop(key, None)


def place_loggers(loggers: Any, run_dir: str) -> None:
    """Write the run's folder into loggers' configurations, in place of ``RUN_DIR``."""
    for entry in loggers if isinstance(loggers, list) else [loggers]:
        arguments = entry.get("init_args") if isinstance(entry, Namespace) else None
        for key in _FOLDER_KEYS:
            if arguments is not None and arguments.get(key) == RUN_DIR:
                arguments[key] = run_dir
