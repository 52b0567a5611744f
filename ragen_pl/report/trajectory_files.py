"""Files of trajectories in a run folder: names, versions, and the limit of their size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from ragen_pl.errors import ConfigError
from ragen_pl.runtime.durable_files import DRAFT, write_lines
from ragen_pl.types import TRAJECTORY_SCHEMA

ROLLOUT, VALIDATION = "rollout", "validation"
THINNED_TO = 16
"""Initial states that a thinned evaluation keeps: its first ones, the same in every evaluation."""
_PREDICTIONS = "predict-"
_NUMBERED = re.compile(rf"({ROLLOUT}|{VALIDATION})-(\d+)")


def rollout_file(iteration: int) -> str:
    """Name the file of some groups of a training rollout."""
    return f"{ROLLOUT}-{iteration:05d}.jsonl"


def evaluation_file(
    kind: str, eval_set: str, iteration: int | None = None, temperature: float | None = None
) -> str:
    """Name the file of an evaluation.

    Args:
        kind: ``validation``, ``test`` or who played, such as ``final``.
        eval_set: The evaluation set; characters that file names cannot hold are written as %XX.
        iteration: The number of iterations of a policy that is still trained.
        temperature: The temperature of one of several evaluations on the same set.
    """
    parts = [kind, *([] if iteration is None else [f"{iteration:05d}"]), quote(eval_set, safe=" ")]
    return "-".join([*parts, *([] if temperature is None else [f"T{temperature:g}"])]) + ".jsonl"


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the records of a file.

    Raises:
        ConfigError: at a line that is no record of this version; the message has file and line.
    """
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: no JSON ({error})") from error
            version = record.get("schema") if isinstance(record, dict) else None
            if version != TRAJECTORY_SCHEMA:
                raise ConfigError(
                    f"{path}:{number}: its schema is {version!r}, but this version of ragen-pl "
                    f"reads {TRAJECTORY_SCHEMA!r}: read it with the version that wrote it"
                )
            yield record


@dataclass(frozen=True, slots=True)
class _File:
    """A file of trajectories."""

    path: Path
    size: int
    kind: str
    """``rollout``, ``validation`` or empty for any other."""
    iteration: int
    """-1 for files of other kinds."""

    @classmethod
    def of(cls, path: Path) -> Self:
        found = _NUMBERED.match(path.name)
        kind, iteration = (found[1], int(found[2])) if found else ("", -1)
        return cls(path, path.stat().st_size, kind, iteration)


def _files(folder: Path) -> list[_File]:
    """List the files that were not asked for by ``predict``, in the order of their names."""
    return [
        _File.of(path)
        for path in sorted(folder.glob("*.jsonl"))
        if not path.name.startswith(_PREDICTIONS)
    ]


def limit_size(folder: Path, max_bytes: int, newest: Path) -> list[str]:
    """Thin the files of a folder until they take at most ``max_bytes``.

    In this order, each step only as far as it is needed: the oldest validations keep their first
    ``THINNED_TO`` initial states; the oldest rollouts and validations are removed; then the other
    evaluations (random, untrained, test, …, the final ones last) keep as many initial states. Never
    touched are the newest rollout, the newest validation and the file that was just written, which
    alone may exceed the limit; files of ``predict`` neither count nor change.

    Args:
        folder: The folder of trajectories.
        max_bytes: The limit.
        newest: The file that was just written.

    Returns:
        What was done, in words, by file; empty if nothing had to be done.
    """
    files = _files(folder)
    excess = sum(file.size for file in files) - max_bytes
    if excess <= 0:
        return []
    last = {
        kind: max((f.iteration for f in files if f.kind == kind), default=-1)
        for kind in (ROLLOUT, VALIDATION)
    }
    spare = [f for f in files if f.path != newest and not (f.kind and f.iteration == last[f.kind])]
    by_age = sorted((f for f in spare if f.kind), key=lambda f: (f.iteration, f.path.name))
    others = sorted(
        (f for f in spare if not f.kind),
        key=lambda f: (f.path.name.startswith("final"), f.path.name),
    )
    done: list[str] = []
    for action, word, chosen in (
        (_thin, "thinned", [f for f in by_age if f.kind == VALIDATION]),
        (_remove, "removed", by_age),
        (_thin, "thinned", others),
    ):
        for file in chosen:
            if excess <= 0:
                return done
            freed = action(file.path)
            if freed:
                excess -= freed
                done.append(f"{word} {file.path.name}")
    return done


def _remove(path: Path) -> int:
    """Remove a file and return its size."""
    size = path.stat().st_size
    path.unlink()
    return size


def _thin(path: Path) -> int:
    """Keep the lines of the first initial states and return the bytes that were freed.

    A file with lines that are no records is left as it is.
    """
    size, kept, groups = path.stat().st_size, list[str](), set[int]()
    with path.open(encoding="ascii", newline="\n") as file:
        try:
            for line in file:
                groups.add(json.loads(line)["group"])
                if len(groups) > THINNED_TO:
                    break
                kept.append(line)
            else:
                return 0
        except (ValueError, KeyError, TypeError):
            return 0
    write_lines(path, kept)
    return size - path.stat().st_size


def remove_after(folder: Path, iteration: int) -> None:
    """Remove rollouts and validations of later iterations, which a run left behind that was then
    resumed before them and ended earlier; and what killed processes had not finished.

    Raises:
        OSError: if one cannot be removed.
    """
    for draft in folder.glob(f".*{DRAFT}"):
        draft.unlink()
    for file in _files(folder):
        if file.iteration > iteration:
            file.path.unlink()
