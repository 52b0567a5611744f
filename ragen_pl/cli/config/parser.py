"""The command's parser: short errors, defaults of the chosen class, loggers in the run folder."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, NoReturn

import torch
from jsonargparse import Namespace, _actions, _typehints
from jsonargparse._util import NestedArg
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger

from ragen_pl.cli.config.constructors import construct
from ragen_pl.cli.config.files import same_class
from ragen_pl.cli.config.messages import did_you_mean, shorten
from ragen_pl.cli.config.schema import alternatives, is_abstract
from ragen_pl.errors import ConfigError

RUN_DIR = "<run_dir>"
"""Default folder of loggers: text that stands for the run's folder, which is known only after
parsing."""
_CHECKPOINT = "ckpt_path"
"""Key of the checkpoint that a command takes; null by default in ``fit`` alone."""
_FOLDER_KEYS = ("save_dir", "dir")
"""Argument names for a logger's folder; the first one that a class has is used."""
NAMELESS = "it maps names to classes, and here the name is missing"
"""What is said of a class that stands in place of a mapping from names to classes."""
_ON_CLASS_CHANGE = "discard_init_args_on_class_path_change"
"""The parser's function that decides which arguments a change of class keeps."""
_ON_VALUE = "adapt_typehints"
"""The parser's function that checks a value against its type, given the value before."""
_OPTION_KINDS = (_actions._ActionConfigLoad, _typehints.ActionTypeHint)
"""The parser's kinds of options whose values may be mappings: groups of keys, and keys."""
_BEFORE_OPTION: ContextVar[Namespace | None] = ContextVar("_BEFORE_OPTION", default=None)
"""While an option of the command line is read, the configuration before it; None while a config
file is read."""


_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$", re.IGNORECASE)
"""What is the value of the option before it, and no option."""


class Parser(LightningArgumentParser):
    """A parser with short errors instead of a page of usage, and without abbreviated keys."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False  # or a key that lacks a letter would be taken for the whole one
        self._negative_number_matcher = _NEGATIVE_NUMBER  # argparse's own knows no exponent

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a nested parser: the outer one reports
            super().error(message, ex)
        raise ConfigError(shorten(message)) from ex

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add a constructor's arguments; a logger's default folder is the run's.

        Defaults that are mappings of instances, members of an enumeration of texts or devices
        become what a config file would hold.
        """
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        for action in self._actions:
            given = action.default
            if isinstance(given, dict) and any(map(dataclasses.is_dataclass, given.values())):
                written = {name: _as_config(each) for name, each in given.items()}
                self.set_defaults({action.dest: written})
            elif isinstance(given, Enum) and isinstance(given, str):  # no text to YAML
                self.set_defaults({action.dest: given.value})
            elif isinstance(given, torch.device):
                self.set_defaults({action.dest: str(given)})
        if inspect.isclass(theclass) and issubclass(theclass, Logger):
            own = [key for key in _FOLDER_KEYS if key in added][:1]
            self.set_defaults(dict.fromkeys(own, RUN_DIR))
        return added

    def validate(self, namespace: Namespace, skip_unset: bool = True, **kwargs: Any) -> None:
        """Check values against their types, null too, which the parser would pass to anything."""
        for name in self.groups or ():
            if name in namespace and namespace[name] is None:
                raise _no_group(name, "null")
        super().validate(namespace, skip_unset, **kwargs)
        for action in self._actions:
            is_null = action.dest in namespace and namespace[action.dest] is None
            if is_null and isinstance(action, _typehints.ActionTypeHint):
                self._check_value_key(action, None, action.dest, namespace)

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse a command line.

        A class that replaces another starts from its own defaults. A mapping whose entries may be
        null is merged by name with the one before; any other mapping replaces it.
        """
        merging = _merging_by_name(getattr(_typehints, _ON_VALUE))
        with ExitStack() as changes:
            changes.enter_context(_replaced(_typehints, _ON_CLASS_CHANGE, _start_afresh))
            changes.enter_context(_replaced(_typehints, _ON_VALUE, merging))
            for kind in _OPTION_KINDS:
                read = _remembering_before(kind.__call__)
                changes.enter_context(_replaced(kind, "__call__", read))
            return super().parse_args(*args, **kwargs)

    def dump(self, cfg: Namespace, *args: Any, **kwargs: Any) -> str:
        """Write a configuration; what ``--print_config`` shows of ``fit`` leaves out a checkpoint
        that is null, since other commands, given that file, would take none either."""
        is_printed = _actions._ActionPrintConfig.is_print_config_requested(self)  # type: ignore[no-untyped-call]
        if is_printed and cfg.get(_CHECKPOINT, "") is None and not self.get_default(_CHECKPOINT):
            cfg = cfg.clone()
            cfg.pop(_CHECKPOINT)
        text: str = super().dump(cfg, *args, **kwargs)
        return text

    def instantiate(self, *args: Any, **kwargs: Any) -> Namespace:
        """Build the parts; a constructor that fails is told in one line."""
        kwargs.setdefault("instantiators", [(construct, object, True)])
        built: Namespace = super().instantiate(*args, **kwargs)
        return built

    def _apply_actions(
        self,
        cfg: Namespace | dict[str, Any],
        parent_key: str = "",
        prev_cfg: Namespace | None = None,
        skip_fn: Callable[[Any], bool] | None = None,
    ) -> Namespace:
        """Check the keys of a mapping; one that an option gives to a group lies over what was
        before, as a config file does, and not over nothing."""
        if parent_key and prev_cfg is None:
            prev_cfg = _BEFORE_OPTION.get()
        self._refuse_plain_values(cfg, parent_key)
        return super()._apply_actions(cfg, parent_key, prev_cfg, skip_fn)

    def _refuse_plain_values(self, given: Namespace | dict[str, Any], parent: str) -> None:
        """Refuse a number, truth value or list in place of a group of keys, which would take all
        of its keys away. A text may be the name of a file that has them.

        Args:
            given: What a file or an option gives.
            parent: The key that ``given`` is below; empty at the top level.

        Raises:
            TypeError: naming the group.
        """
        for name in self.groups or ():
            value: Any = given
            for part in name.removeprefix(f"{parent}.").split("."):
                value = value.get(part) if isinstance(value, dict | Namespace) else None
            if isinstance(value, bool | int | float | list):
                raise _no_group(name, json.dumps(value))


def _no_group(name: str, value: str) -> TypeError:
    told = f"it is {value}, but it is a group of keys: leave it out, or set them"
    return TypeError(f'Parser key "{name}": {told}')


@contextmanager
def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of the parser's within the context.

    jsonargparse would keep every argument of the previous class that the new one has too, defaults
    included, and would replace every mapping as a whole; it has no setting against either.
    """
    kept = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def _remembering_before(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reader of an option that keeps the configuration before it at hand meanwhile."""

    def remember_and_read(action: Any, *args: Any, **kwargs: Any) -> Any:
        if not args:  # not an option that is read, but one that is declared
            return read(action, **kwargs)
        token = _BEFORE_OPTION.set(args[1])
        try:
            return read(action, *args, **kwargs)
        finally:
            _BEFORE_OPTION.reset(token)

    return remember_and_read


def _merging_by_name(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check of a value that first merges mappings whose entries may be null."""

    def merge_and_check(value: Any, annotation: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_by_name(annotation):
            before = kwargs.get("prev_val")
            before = before if isinstance(before, dict) else {}
            _refuse_nameless(value)
            if _has_classes(annotation):
                _refuse_without_class(value, before)
            _refuse_null_of_unknown(value, before)
            value = {**before, **value} if isinstance(value, dict) else value
        return check(value, annotation, *args, **kwargs)

    return merge_and_check


def _refuse_nameless(value: Any) -> None:
    """Refuse a class that stands in place of a mapping from names to classes.

    Raises:
        ValueError: with the class below a name.
    """
    if isinstance(value, NestedArg):
        given = [str(value.key).partition(".")[0]]
    else:
        given = list(value) if isinstance(value, dict) else []
    if not set(given) & {"class_path", "init_args"}:
        return
    kind = value.get("class_path") if isinstance(value, dict) else None
    raise ValueError(f"{NAMELESS}\nput one above, such as default: {{class_path: {kind or '…'}}}")


def _refuse_without_class(value: Any, before: Mapping[str, Any]) -> None:
    """Refuse arguments of an entry that has no class, such as one whose name is misspelled.

    Raises:
        ValueError: naming the nearest entry that has one.
    """
    if isinstance(value, NestedArg):
        name, _, key = str(value.key).partition(".")
        nameless = [name] if key and key != "class_path" else []
    else:
        entries = value.items() if isinstance(value, dict) else ()
        nameless = [n for n, e in entries if isinstance(e, dict) and "class_path" not in e]
    for name in nameless:
        if before.get(name) is None:
            known = [other for other, entry in before.items() if entry is not None]
            hint = did_you_mean(name, known) or f"known: {', '.join(known) or 'none'}"
            raise ValueError(f"{name} has no class_path to give arguments to\n{hint}")


def _refuse_null_of_unknown(value: Any, before: Mapping[str, Any]) -> None:
    """Refuse an option that leaves out an entry which nothing before it defines, such as one whose
    name is misspelled.

    A config file may do so: it also lies over configurations that have no such entry.

    Raises:
        ValueError: naming the nearest entry.
    """
    if isinstance(value, NestedArg):
        left_out = [str(value.key)] if value.val in (None, "null") and "." not in value.key else []
    elif isinstance(value, dict) and _BEFORE_OPTION.get() is not None:
        left_out = [str(name) for name, entry in value.items() if entry is None]
    else:
        left_out = []
    for name in left_out:
        if name not in before:
            known = list(before)
            hint = did_you_mean(name, known) or f"known: {', '.join(known) or 'none'}"
            raise ValueError(f"{name} is null, but there is no {name} to leave out\n{hint}")


def _is_by_name(annotation: Any) -> bool:
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) not in (dict, Mapping):
        return False
    return type(None) in alternatives(args[1])


def _has_classes(annotation: Any) -> bool:
    """Tell whether the entries of a mapping are of a class to choose."""
    return any(map(is_abstract, alternatives(typing.get_args(annotation)[1])))


def _as_config(value: Any) -> Any:
    """Write an instance of a dataclass as a config file would."""
    if not dataclasses.is_dataclass(value):
        return value
    kind = type(value)
    arguments = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}


def _start_afresh(_: object, old: Any, new: Any) -> None:
    """Remove the previous class's arguments from a ``class_path`` entry, in place."""
    named = old.get("class_path") if old else None  # none for a dataclass, which has no others
    if named is not None and not same_class(named, new["class_path"]):
        for key in ("init_args", "dict_kwargs"):
            old.pop(key, None)


def place_loggers(loggers: Any, folder: str, instead_of: str = RUN_DIR) -> None:
    """Write a folder into loggers' configurations where another one stands, ``RUN_DIR`` before a
    run has its own."""
    for entry in loggers if isinstance(loggers, list) else [loggers]:
        arguments = entry.get("init_args") if isinstance(entry, Namespace) else None
        for key in _FOLDER_KEYS:
            if arguments is not None and arguments.get(key) == instead_of:
                arguments[key] = folder
