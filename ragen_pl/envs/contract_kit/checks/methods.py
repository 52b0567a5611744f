"""Methods that nobody calls: their names resemble those of optional ones, or their arguments are
others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from types import FunctionType

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.runtime.findings import Finding, ok, warning

_OPTIONAL: Mapping[str, object] = {
    name: value
    for name, value in vars(TextEnv).items()
    if not name.startswith("_")
    and isinstance(value, FunctionType | property)
    and not getattr(value, "__isabstractmethod__", False)
}
"""Methods and properties that have a default."""
_SHORT = {"expert": "expert_turn", "hindsight": "hindsight_turn", "vocab": "vocabulary"}
"""Short names that somebody may give them."""
_SIMILAR = 0.8
"""Similarity from which on a word is taken for another one with a slip."""
_PACKAGE = TextEnv.__module__.partition(".")[0]


def check_methods(subject: ExaminedEnv) -> Iterator[Finding]:
    """Look at the public names of the user's own classes, and at the arguments of their methods."""
    found = list(_slips(type(subject.env)))
    yield from found
    if not found:
        yield ok("no method has a name or arguments by which nobody calls it")


def _slips(kind: type[TextEnv]) -> Iterator[Finding]:
    for each in reversed(kind.__mro__):
        if not issubclass(each, TextEnv) or each.__module__.partition(".")[0] == _PACKAGE:
            continue
        for name, value in vars(each).items():
            if name.startswith("_") or not isinstance(value, FunctionType | property):
                continue
            if name in _OPTIONAL:
                if told := _other_arguments(value, _OPTIONAL[name]):
                    yield warning(
                        f"{each.__name__}.{told}",
                        "give it the arguments of TextEnv's (ragen_pl.envs.base)",
                    )
            elif (meant := _meant(name)) is not None and meant not in vars(each):
                yield warning(
                    f"{each.__name__} defines {name}, which nobody calls: a run calls {meant}",
                    f"rename it to {meant}, or begin its name with an underscore if it is another "
                    "one",
                )


def _meant(name: str) -> str | None:
    """Return the optional method whose name another one resembles; None if there is none."""
    names = {name: name for name in _OPTIONAL} | _SHORT
    likeness = {known: _likeness(name, known) for known in names if f"{name}s" != known}
    best = max(likeness, key=likeness.__getitem__)
    return names[best] if likeness[best] >= _SIMILAR else None


def _likeness(one: str, other: str) -> float:
    """Return how similar the least similar words of two names are; 0 if one has more words."""
    mine, its = one.split("_"), other.split("_")
    if len(mine) != len(its):
        return 0.0
    pairs = zip(mine, its, strict=True)
    return min(SequenceMatcher(None, word, wanted).ratio() for word, wanted in pairs)


def _other_arguments(own: object, theirs: object) -> str:
    """Describe a method that cannot be called as the base's is; empty if it can be."""
    if not isinstance(own, FunctionType) or not isinstance(theirs, FunctionType):
        return ""
    mine, wanted = inspect.signature(own), inspect.signature(theirs)
    try:
        mine.bind(*wanted.parameters)
    except TypeError:
        given, needed = (", ".join([*each.parameters][1:]) for each in (mine, wanted))
        return f"{own.__name__}({given}) cannot be called as ({needed}), as a run does"
    return ""
