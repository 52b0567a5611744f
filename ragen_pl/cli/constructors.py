"""What a constructor of a user's class raises, told in one line with the place in the user's code.

The parser builds the classes that a configuration names. Its own report of a constructor's error is
a page of traceback, or a list of the types that do not fit.
"""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from lightning.fabric.utilities.exceptions import MisconfigurationException

from ragen_pl.errors import ConfigError
from ragen_pl.runtime.visible_text import one_line

T = TypeVar("T")

_ROOT = Path(__file__).resolve().parents[2]
_OWN = (_ROOT / "ragen_pl", _ROOT / "callbacks")
"""The code of this package."""
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED = {"site-packages", "dist-packages"}
_SPEAKS_OF_A_KEY = re.compile(r"([\w.]+)(?: is |: )")
"""The beginning of a message that is meant for who sets the key."""


class ConstructorError(ConfigError):
    """An error in a constructor that is not about the value of one of its arguments."""


def construct(kind: type[T], *args: Any, **kwargs: Any) -> T:
    """Build an instance of a class, in the parser's place.

    Raises:
        ConstructorError: when the constructor fails for another reason than a refused argument.
            What this package's own constructors raise is left as it is.
    """
    try:
        return kind(*args, **kwargs)
    except (ConfigError, MisconfigurationException):
        raise
    except Exception as error:  # the boundary to user code: any error is theirs
        place = place_of_fault(error)
        is_own = not place and _is_below(Path(inspect.getfile(kind)), _OWN)
        if is_own or _is_message(error, kind):
            raise
        raise ConstructorError(
            f"{kind.__module__}.{kind.__qualname__} cannot be built: {told(error, place)}"
        ) from error


def told(error: BaseException, place: str) -> str:
    """Return an exception's type, its text and its place on one line."""
    text = one_line(f"{type(error).__name__}: {error}", longest=300).removesuffix(":")
    return f"{text} ({place})" if place else text


def place_of_fault(error: BaseException) -> str:
    """Return file and line of the innermost call in code that is neither installed nor of this
    package; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # its text names them
    here = Path.cwd()
    for path, line in reversed(list(_calls(error))):
        if not _is_foreign(path):
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            return f"{shown}:{line}"
    return ""


def _calls(error: BaseException) -> Iterator[tuple[Path, int]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not name.startswith("<"):  # generated code, such as a dataclass's constructor
            yield Path(name).absolute(), line


def _is_foreign(path: Path) -> bool:
    """Return whether a file is of this package, of an installed one, or of Python itself."""
    return bool(_INSTALLED & set(path.parts)) or _is_below(path, (*_OWN, _STANDARD_LIBRARY))


def _is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def _is_message(error: Exception, kind: type) -> bool:
    """Return whether an error says what is wrong with an argument, or which package is missing."""
    if "pip install" in str(error):
        return True
    match = _SPEAKS_OF_A_KEY.match(str(error)) if isinstance(error, ValueError) else None
    if match is None:
        return False
    return "." in match[1] or match[1] in inspect.signature(kind).parameters
