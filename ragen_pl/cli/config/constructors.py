"""What a constructor of a user's class raises, told in one line with the place in the user's code.

The parser builds the classes that a configuration names. Its own report of a constructor's error is
a page of traceback, or a list of the types that do not fit.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, TypeVar

from lightning.fabric.utilities.exceptions import MisconfigurationException

from ragen_pl.errors import ConfigError
from ragen_pl.runtime.user_faults import (
    OWN_CODE,
    how_it_ends,
    is_below,
    is_own_end,
    module_that_exits,
    place_of_fault,
)
from ragen_pl.runtime.visible_text import one_line

T = TypeVar("T")

_SPEAKS_OF_A_KEY = re.compile(r"([\w.]+)(?: is |: )")
"""The beginning of a message that is meant for who sets the key."""


class ConstructorError(ConfigError):
    """An error in a constructor that is not about the value of one of its arguments."""


def construct(kind: type[T], /, *args: Any, **kwargs: Any) -> T:
    """Build an instance of a class, in the parser's place.

    Raises:
        ConstructorError: when the constructor fails for another reason than a refused argument, or
            ends the program. What this package's own constructors raise is left as it is.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        return kind(*args, **kwargs)
    except (ConfigError, MisconfigurationException):
        raise
    except SystemExit as error:
        is_own = is_own_end(error) or is_below(Path(inspect.getfile(kind)), OWN_CODE)
        if is_own or module_that_exits(error):  # told where the command ends, by line or by module
            raise
        raise ConstructorError(f"{name} cannot be built: {how_it_ends(error)}") from error
    except Exception as error:  # the boundary to user code: any error is theirs
        place = place_of_fault(error)
        is_own = not place and is_below(Path(inspect.getfile(kind)), OWN_CODE)
        if is_own or _is_message(error, kind):
            raise
        raise ConstructorError(f"{name} cannot be built: {told(error, place)}") from error


def told(error: BaseException, place: str) -> str:
    """Return an exception's type, its text and its place on one line."""
    text = one_line(f"{type(error).__name__}: {error}", longest=300).removesuffix(":")
    return f"{text} ({place})" if place else text


def _is_message(error: Exception, kind: type) -> bool:
    """Return whether an error says what is wrong with an argument, or which package is missing."""
    if "pip install" in str(error):
        return True
    match = _SPEAKS_OF_A_KEY.match(str(error)) if isinstance(error, ValueError) else None
    if match is None:
        return False
    return "." in match[1] or match[1] in inspect.signature(kind).parameters
