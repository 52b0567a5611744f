"""Prove that every key of a configuration does something: changed, it changes what comes out.

Keys are found by walking constructors and dataclasses, so that a new one without another value in
the test's table fails.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from ragen_pl.cli.config.schema import constructor_keys

Path = tuple[str, ...]
Outcome = Mapping[str, Any]
"""What came out, by name: tensors and plain data."""


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, tensors up to rounding."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return bool(one == other)
    return one.shape == other.shape and torch.allclose(
        one.double(), other.double(), rtol=1e-5, atol=1e-8, equal_nan=True
    )


def differ(one: Outcome, other: Outcome) -> bool:
    """Whether they hold different things, or one by more than rounding."""
    return one.keys() != other.keys() or not all(same(one[name], other[name]) for name in one)


def members(config: Any) -> Mapping[str, Any]:
    """Return the keys of one level with their values."""
    if isinstance(config, Mapping):
        return config
    return {part.name: getattr(config, part.name) for part in dataclasses.fields(config)}


def walk(config: Any, path: Path = (), whole: Sequence[str] = ()) -> Iterator[Path]:
    """Iterate over the paths of all keys that hold plain values or null, or are named as whole."""
    for name, value in members(config).items():
        if dataclasses.is_dataclass(value) and name not in whole:
            yield from walk(value, (*path, name), whole)
        else:
            yield (*path, name)


def at(config: Any, path: Path) -> Any:
    for key in path:
        config = members(config)[key]
    return config


def replaced(config: Any, path: Path, value: Any) -> Any:
    """Return the configuration with one key changed."""
    head, *rest = path
    inner = replaced(members(config)[head], tuple(rest), value) if rest else value
    if isinstance(config, Mapping):
        return {**config, head: inner}
    return dataclasses.replace(config, **{head: inner})


class Effect(Enum):
    """Say what came of a changed key."""

    CHANGED = "changes the outcome"
    REFUSED = "is refused"
    IGNORED = "is ignored"


@dataclass
class KeyProof:
    """Hold runs with one key changed against the unchanged one.

    Args:
        kind: Whose constructor's keys are proven, those of dataclasses within too.
        run: From all arguments of the constructor to what comes out.
        bases: Arguments to start from; the constructor's defaults stand for the rest. Each key
            must act in one of them: some need others to be set.
        others: Values by ``Class.key``; every other one of a Literal and of a bool is found.
        whole: Keys whose dataclasses are proven elsewhere and count as one value here.
    """

    kind: Callable[..., Any]
    run: Callable[[dict[str, Any]], Outcome]
    bases: Sequence[Mapping[str, Any]] = ({},)
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    whole: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._before: dict[int, Outcome] = {}

    def arguments(self, number: int) -> dict[str, Any]:
        bound = inspect.signature(self.kind).bind(**self.bases[number])
        bound.apply_defaults()
        return dict(bound.arguments)

    def paths(self) -> list[Path]:
        """List every key that a base holds."""
        held = [path for number in range(len(self.bases)) for path in self._paths(number)]
        return list(dict.fromkeys(held))

    def _paths(self, number: int) -> list[Path]:
        return list(walk(self.arguments(number), (), self.whole))

    def name(self, number: int, path: Path) -> str:
        return f"{self._owner(number, path).__name__}.{path[-1]}"

    def _owner(self, number: int, path: Path) -> Any:
        return type(at(self.arguments(number), path[:-1])) if len(path) > 1 else self.kind

    def before(self, number: int) -> Outcome:
        """Return an unchanged run's outcome."""
        if number not in self._before:
            self._before[number] = self.run(self.arguments(number))
        return self._before[number]

    def values(self, number: int, path: Path) -> list[Any]:
        """List what the key may hold instead."""
        now, name = at(self.arguments(number), path), self.name(number, path)
        annotation = (constructor_keys(self._owner(number, path)) or {})[path[-1]]
        found: Sequence[Any] = self.others.get(name, ())
        if not found and get_origin(annotation) is Literal:
            found = get_args(annotation)
        elif not found and annotation is bool:
            found = (not now,)
        values = [value for value in found if not same(value, now)]
        assert values, f"{name} needs another value than {now!r} in the table of this test"
        return values

    def effect(self, number: int, path: Path, value: Any) -> Effect:
        changed = replaced_or_none(self.arguments(number), path, value)
        if changed is None:
            return Effect.REFUSED
        before = self.before(number)
        try:
            acts = differ(before, self.run(changed))
        except ValueError:
            return Effect.REFUSED
        return Effect.CHANGED if acts else Effect.IGNORED

    def check(self, path: Path) -> None:
        """Require that every other value acts in a base or is refused, and one of them acts."""
        effects: dict[tuple[str, str], Effect] = {}
        for number in range(len(self.bases)):
            if path not in self._paths(number):
                continue
            for value in self.values(number, path):
                place = self.name(number, path), repr(value)
                before = effects.get(place, Effect.IGNORED)
                if before is not Effect.CHANGED:
                    new = self.effect(number, path, value)
                    effects[place] = before if new is Effect.IGNORED else new
        for (name, value), effect in effects.items():
            assert effect is not Effect.IGNORED, f"{name} {effect.value} when it is {value}"
        assert Effect.CHANGED in effects.values(), f"every other value of {path} is refused"

    def check_reproducible(self) -> None:
        """Require the same outcome of the same arguments: else every key would seem to act."""
        for number in range(len(self.bases)):
            before = self.before(number)
            assert before, "there is something to compare"
            assert not differ(before, self.run(self.arguments(number))), self.bases[number]


def replaced_or_none(config: Any, path: Path, value: Any) -> Any:
    """Return the configuration with one key changed; None where its own class refuses that."""
    try:
        return replaced(config, path, value)
    except ValueError:
        return None


def every_key(proofs: Mapping[str, KeyProof]) -> list[tuple[str, Path]]:
    """List (proof, path) for a parametrized test."""
    return [(name, path) for name, proof in proofs.items() for path in proof.paths()]


def spelled(value: Any) -> str:
    """Name a parameter of a test."""
    return value if isinstance(value, str) else ".".join(value)
