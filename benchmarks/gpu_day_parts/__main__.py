"""Run one part in this process: ``python -m benchmarks.gpu_day_parts NAME DAY``.

DAY is a ``Day`` as JSON. Exits with 0 where the part is done or cannot run here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

from benchmarks.gpu_day_parts.catalog import part_named
from benchmarks.gpu_day_parts.part import FOLDER, Day, Part, Record, SkipPart
from ragen_pl.runtime.wait_policy import limit_spinning


def run_part(part: Part, day: Day, record: Record) -> None:
    """Run a part, or record why it cannot run here."""
    try:
        if day.tiny and not part.in_tiny:
            raise SkipPart("at tiny sizes another part does the same")
        check_packages(part.packages)
        limit_spinning()  # before PyTorch is loaded
        module = importlib.import_module(f"benchmarks.gpu_day_parts.{part.module}")
        module.run(day, record, *part.arguments)
    except SkipPart as skipped:
        record.skip(str(skipped))
        print(f"skipped: {skipped}")


def check_packages(names: Sequence[str]) -> None:
    """Check that packages can be imported, without importing them.

    Raises:
        SkipPart: naming those that are missing.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise SkipPart(f"not installed: {', '.join(missing)}")


def main(given: Sequence[str]) -> None:
    """Run the part that is named."""
    name, text = given
    part, day = part_named(name), Day.from_json(text)
    path = day.out / FOLDER / f"{part.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    run_part(part, day, Record(path))


if __name__ == "__main__":
    main(sys.argv[1:])
