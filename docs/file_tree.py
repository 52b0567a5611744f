"""Generator of the file tables of ``docs/architecture.md`` from the module docstrings.

``python docs/file_tree.py`` rewrites the page below its marker; ``--check`` only compares.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
MARKER = "<!-- Everything below is written by docs/file_tree.py. -->"
FOLDERS = ("ragen_pl", "callbacks", "benchmarks")


def paragraphs(path: Path) -> list[str]:
    """Return the paragraphs of a module's docstring, one line each, as Markdown."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    blocks = [" ".join(block.split()) for block in docstring.split("\n\n")]
    return [re.sub(r"``([^`]+)``", r"`\1`", block) for block in blocks if block]


def phrase(path: Path) -> str:
    """Return the first paragraph of a module's docstring, without its full stop."""
    return next(iter(paragraphs(path)), "").rstrip(".").replace("|", "\\|")


def packages(folder: Path) -> Iterator[Path]:
    """Iterate over a folder and those below it that hold Python files, parents first."""
    yield from sorted({path.parent for path in folder.rglob("*.py")})


def section(folder: Path) -> str:
    """Describe one folder: what its ``__init__`` says, and a table of its files."""
    name = folder.relative_to(ROOT).as_posix()
    init = folder / "__init__.py"
    about = paragraphs(init) if init.is_file() else []
    files = [path for path in sorted(folder.glob("*.py")) if path != init]
    rows = [f"| [`{path.name}`](../{name}/{path.name}) | {phrase(path)} |" for path in files]
    table = ["\n".join(["| file | what it holds |", "|---|---|", *rows])] if rows else []
    level = "#" * (2 + name.count("/"))
    return "\n\n".join([f"{level} `{name}/`", *about, *table])


def generated() -> str:
    """Return everything that stands below the marker."""
    parts = [section(folder) for name in FOLDERS for folder in packages(ROOT / name)]
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """Return the whole page: what is written by hand up to the marker, and the tables.

    Raises:
        ValueError: where the page has no marker.
    """
    by_hand, marker, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise ValueError(f"{PAGE} has no line {MARKER!r}: put it above the tables")
    return f"{by_hand}{MARKER}\n\n{generated()}"


def main(given: Sequence[str] | None = None) -> int:
    """Write the page, or compare it; return 1 where it is out of date."""
    parser = argparse.ArgumentParser(description="Write the file tables of docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    args = parser.parse_args(given)
    text = page()
    if args.check:
        return int(text != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
