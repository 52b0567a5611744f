"""Find config files by name and prepare the command line; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from ragen_pl.errors import ConfigError as ConfigError

PLAN = "plan"
"""The command that runs nothing."""
COMMANDS = ("fit", "validate", "test", "predict", PLAN)
FOLDER = Path(__file__).resolve().parent.parent / "configs"
"""Where the shipped configs are, whatever the working directory."""
_SUFFIXES = (".yaml", ".yml")


def find_config(name: str) -> Path:
    """Find a config file by path or name, with or without its suffix.

    Looks in the working directory, then in its ``configs/``, then in the shipped ``configs/``.

    Raises:
        ConfigError: with the nearest names.
    """
    folders = [Path(), Path("configs"), FOLDER]
    for folder in folders:
        for suffix in ("", *_SUFFIXES):
            path = folder / f"{name}{suffix}"
            if path.is_file():
                return path
    known = sorted({p.stem for f in folders for s in _SUFFIXES for p in f.glob(f"*{s}")})
    nearest = get_close_matches(Path(name).stem, known, n=3)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {', '.join(known)}"
    raise ConfigError(
        f"--config {name}: there is no such file in the working directory or in configs/\n  {hint}"
    )


def prepare(argv: Sequence[str]) -> list[str]:
    """Put the command first and replace the names of configs by their paths."""
    rest = list(argv)
    command = next((arg for arg in rest if arg in COMMANDS), None)
    if command is not None:
        rest.remove(command)
    prepared = [] if command is None else [command]
    expects_config = False
    for arg in rest:
        if expects_config:
            prepared.append(str(find_config(arg)))
        elif arg.startswith(("--config=", "-c=")):
            prepared += ["--config", str(find_config(arg.partition("=")[2]))]
        else:
            prepared.append(arg)
        expects_config = not expects_config and arg in ("--config", "-c")
    return prepared


def config_paths(argv: Sequence[str]) -> list[Path]:
    """List the config files of a prepared command line, in order."""
    return [Path(value) for flag, value in pairwise(argv) if _is_config(flag)]


def options(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Iterate over (key, value) of a prepared command line; None where no value follows.

    Config files appear as ``config``.
    """
    position = 0
    while position < len(argv):
        arg = argv[position]
        position += 1
        if _is_config(arg):
            arg = "--config"
        if not arg.startswith("--"):
            continue
        key, has_value, value = arg[2:].partition("=")
        following = argv[position] if position < len(argv) else "--"
        if has_value:
            yield key, value
        elif following.startswith("--"):
            yield key, None
        else:
            position += 1
            yield key, following


def _is_config(arg: str) -> bool:
    return arg in ("--config", "-c")
