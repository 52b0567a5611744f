"""The command ``new``: a folder for a project of one's own."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.errors import ConfigError

TEMPLATE = Path(__file__).resolve().parent / "project_template"
_PROJECT = "{project}"
"""Stands for the project's name in the template's README."""

_DESCRIPTION = """\
Write a folder for a project of your own: an environment, its config and its test.

  run.py new my_project
"""


def new_project(argv: Sequence[str]) -> None:
    """Write a project folder with an environment, its config and its test; print what to do next.

    Args:
        argv: Arguments after ``new``: the folder.

    Raises:
        ConfigError: when it is not exactly one folder, or the folder is not empty.
    """
    if {"-h", "--help"} & set(argv):
        parser = CommandParser("new", _DESCRIPTION)
        parser.add_argument("folder", help="folder that does not exist yet, or is empty")
        parser.parse_args(["--help"])
    if len(argv) != 1 or argv[0].startswith("-"):
        given = f"new is given {' '.join(argv)}" if argv else "new is given no folder"
        raise ConfigError(f"{given}; give one that does not exist yet, such as new my_project")
    folder = Path(argv[0])
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        what = "is a file" if folder.is_file() else "is a folder that is not empty"
        raise ConfigError(f"{folder} {what}: give another one, which new can fill")
    try:
        written = [_write(source, folder) for source in _sources()]
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    command = "ragen-pl" if shutil.which("ragen-pl") else "python -m ragen_pl"
    print(
        f"{folder} holds {', '.join(map(str, written))}; go on with\n"
        f"  cd {shlex.quote(str(folder))}\n"
        "  pytest\n"
        f"  {command} fit --config guess_number"
    )


def _sources() -> list[Path]:
    """List the template's files, without ``__pycache__`` folders that Python may have added."""
    files = sorted(path for path in TEMPLATE.rglob("*") if path.is_file())
    return [path for path in files if path.parent.name != "__pycache__"]


def _write(source: Path, folder: Path) -> Path:
    """Write one file of the template; return its path in the folder."""
    part = source.relative_to(TEMPLATE)
    target = folder / part
    target.parent.mkdir(parents=True, exist_ok=True)
    text = source.read_text(encoding="utf-8")
    target.write_text(text.replace(_PROJECT, folder.resolve().name), encoding="utf-8")
    return part
