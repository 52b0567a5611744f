"""The boundary to parts that may be a user's own classes: curricula, estimators, losses, filters.

What one of them raises, and any result that breaks its contract, becomes a ``ConfigError`` that
names the class, what it returned and what it must return.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from ragen_pl.errors import ConfigError
from ragen_pl.runtime.out_of_memory import is_out_of_memory
from ragen_pl.runtime.user_faults import describe_fault

_SHIPPED = "ragen_pl."


def name_of(part: object) -> str:
    """Return a part's class as a ``class_path`` has it."""
    kind = type(part)
    return f"{kind.__module__}.{kind.__qualname__}"


def described(value: object) -> str:
    """Return what a value is, in a few words."""
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        article = "an" if kind.startswith("i") else "a"
        return f"{article} {kind} tensor of shape {tuple(value.shape)} on {value.device}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


@contextmanager
def calling(part: object, method: str, signature: str) -> Iterator[None]:
    """Turn any exception that a user's class raises within into a ``ConfigError``.

    Those of the shipped classes are left alone: their tracebacks are needed. So is a lack of
    memory, which has a message of its own.

    Args:
        part: The object that is called.
        method: The method.
        signature: The arguments that it is called with.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the boundary to user code: any error is theirs
        if type(part).__module__.startswith(_SHIPPED) or is_out_of_memory(error):
            raise
        raise ConfigError(
            f"{name_of(part)}.{method} raised {describe_fault(error, part)}\n"
            f"  it is called as {method}({signature})"
        ) from error


def contract_error(part: object, method: str, given: str, wanted: str) -> ConfigError:
    """Return the error of a method that returned ``given`` in place of ``wanted``."""
    return ConfigError(f"{name_of(part)}.{method} returned {given}\n  it must return {wanted}")
