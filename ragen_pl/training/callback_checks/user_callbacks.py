"""The boundary to callbacks, which may be a user's own classes or Lightning's: wrong hooks are
refused before a run, and what a hook raises is told by its name."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from lightning.pytorch.callbacks import Callback

from ragen_pl.errors import ConfigError
from ragen_pl.runtime.user_classes import name_of
from ragen_pl.runtime.user_faults import OWN_CODE, describe_fault, is_below
from ragen_pl.training.callback import RolloutCallback


def refuse_wrong_hooks(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks whose hooks do not take the arguments that they are called with, or have a
    name that is almost a hook's.

    Raises:
        ConfigError: naming the class, the hook and its arguments.
    """
    for callback in callbacks:
        base = RolloutCallback if isinstance(callback, RolloutCallback) else Callback
        hooks = dict(inspect.getmembers(base, inspect.isfunction))
        _refuse_misspelt(callback, [name for name in hooks if name.startswith("on_")])
        for name, wanted in hooks.items():
            given = getattr(callback, name)
            if name.startswith("_") or getattr(type(callback), name, None) is wanted:
                continue
            _check_hook(callback, name, given, wanted)


def _refuse_misspelt(callback: Callback, hooks: Sequence[str]) -> None:
    for name, _ in inspect.getmembers(type(callback), inspect.isfunction):
        if not name.startswith("on_") or name in hooks:
            continue
        for meant in get_close_matches(name, hooks, n=1, cutoff=0.85):
            raise ConfigError(
                f"{name_of(callback)}.{name} is the name of no hook, so that nothing would call "
                f"it: call it {meant}, or begin its name otherwise if you call it yourself"
            )


def _check_hook(
    callback: Callback, name: str, given: object, wanted: Callable[..., object]
) -> None:
    if not callable(given):
        raise ConfigError(f"{name_of(callback)}.{name} is {given!r:.40}: it must be a method")
    arguments = list(inspect.signature(wanted).parameters)[1:]
    try:
        inspect.signature(given).bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{name_of(callback)}.{name} cannot be called: {error}\n"
            f"  it is called as {name}({', '.join(arguments)})"
        ) from error
    except ValueError:  # a signature that Python does not know
        return


def fault_of_callback(error: BaseException) -> str | None:
    """Return what a callback raised that is not of this package, by its class and method; None if
    the error came from elsewhere."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner, method = frame.f_locals.get("self"), frame.f_code.co_name
        if not isinstance(owner, Callback) or _is_shipped(type(owner)):
            continue
        if not isinstance(error, Exception):
            return None
        told = f"{name_of(owner)}.{method} raised {describe_fault(error, owner)}"
        if isinstance(error, AttributeError) and "__init__" in vars(type(owner)):
            told += f"\n  {type(owner).__name__}.__init__ must call super().__init__() first"
        return told
    return None


def _is_shipped(kind: type[Callback]) -> bool:
    """Return whether a class is of this package."""
    try:
        return is_below(Path(inspect.getfile(kind)), OWN_CODE)
    except (TypeError, OSError):  # made where no file is, as in an interactive session
        return False
