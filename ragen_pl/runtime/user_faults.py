"""What a user's code raised, and where: the file and line that a message can name."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Hashable, Iterator
from pathlib import Path
from types import TracebackType

from ragen_pl.runtime.visible_text import shown, visible

_ROOT = Path(__file__).resolve().parents[2]
OWN_CODE = (_ROOT / "ragen_pl", _ROOT / "callbacks")
"""The code of this package."""
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED = {"site-packages", "dist-packages"}
_LONGEST = 300
"""Maximum characters shown of an error message."""


def place_of_fault(error: BaseException) -> str:
    """Return file and line of the innermost call in code that is neither installed nor of this
    package; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # its text names them
    here = Path.cwd()
    for path, line in reversed(list(_calls(error))):
        if is_users(path):
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            return f"{shown}:{line}"
    return ""


def kind_of(error: Exception) -> Hashable:
    """Return a key that is equal for exceptions of one type from one line."""
    return type(error).__qualname__, *_origin(error.__traceback__)


def describe_fault(error: Exception, called: object = None) -> str:
    """Describe an exception that user code raised: its type, its message, file and line.

    Args:
        error: The exception.
        called: The user's object that was called, of whose code the line must be; None also takes
            a line of this package, as where a shipped environment raised.
    """
    place = place_of_fault(error)
    if not place and called is None:
        file, line = _origin(error.__traceback__)
        place = f"{Path(file).name}:{line}"
    text = f"{type(error).__name__}: {shown(error, str)}"
    text = visible(text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …")
    return f"{text} ({place})" if place else text


def is_own_end(error: SystemExit) -> bool:
    """Return whether the program ends itself, such as after a signal, by an exception of its own;
    ``sys.exit`` in a user's code raises a plain one."""
    return type(error) is not SystemExit


def how_it_ends(error: SystemExit) -> str:
    """Describe a call of ``sys.exit`` in a user's code: its argument, file and line."""
    place, code = place_of_fault(error), 0 if error.code is None else error.code
    return f"it ends the program, sys.exit({code!r})" + (f" ({place})" if place else "")


def module_that_exits(error: SystemExit) -> str:
    """Return the name of the module whose import ended the program; empty if none did."""
    if is_own_end(error):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [frame for frame in frames if frame.f_code.co_name == "<module>"]
    return str(modules[-1].f_globals.get("__name__", "")) if modules else ""


def is_users(path: Path) -> bool:
    """Tell whether a file is a user's: neither of this package, nor installed, nor of Python."""
    path = path.absolute()
    is_installed = bool(_INSTALLED & set(path.parts))
    return not is_installed and not is_below(path, (*OWN_CODE, _STANDARD_LIBRARY))


def is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    """Tell whether a file lies in one of the folders."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def _calls(error: BaseException) -> Iterator[tuple[Path, int]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not name.startswith("<"):  # generated code, such as a dataclass's constructor
            yield Path(name).absolute(), line


def _origin(traceback: TracebackType | None) -> tuple[str, int]:
    """Return the file and line that raised."""
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
