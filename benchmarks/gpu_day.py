"""Everything that a GPU has to be asked, in one command of at most half an hour.

``python benchmarks/gpu_day.py OUT [--limit_minutes 29] [--model_folder FOLDER]``

Writes ``OUT/gpu_day.json`` and one page, ``OUT/gpu_day.md``, with every aim that ``LOG.md`` has for
GPUs beside its figure. Each part is a process of its own, so what fails is recorded and the next
goes on. The same command goes on with what has no result yet; ``--retry`` tries again what failed.
Nothing needs to be installed from here, and no network is needed. docs/gpu_day.md says what the
figures mean.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpu_day_parts.catalog import PARTS, part_named
from benchmarks.gpu_day_parts.page import to_json, to_markdown
from benchmarks.gpu_day_parts.part import Day, Part, PartResult, Status, write_json
from benchmarks.gpu_day_parts.runner import Runner

RESULTS, PAGE = "gpu_day.json", "gpu_day.md"


def run_day(runner: Runner, chosen: Sequence[Part], parts: Sequence[Part] = PARTS) -> bool:
    """Run the chosen parts that are due and write both files after each; return whether none of
    the chosen ones failed."""
    write_results(runner, parts)
    for _ in runner.run(chosen):
        write_results(runner, parts)
    ended = {part.name: runner.outcome(part) for part in chosen}
    bad = (Status.FAILED, Status.OUT_OF_TIME)
    return not any(found is not None and found.status in bad for found in ended.values())


def write_results(runner: Runner, parts: Sequence[Part]) -> None:
    """Write what is known so far as JSON and as a page."""
    found: dict[str, PartResult] = {}
    for part in parts:
        outcome = runner.outcome(part)
        if outcome is not None:
            found[part.name] = outcome
    out = runner.day.out
    write_json(out / RESULTS, to_json(runner.day, parts, found))
    (out / PAGE).write_text(to_markdown(runner.day, parts, found), encoding="utf-8")


def chosen_parts(names: Sequence[str] | None) -> list[Part]:
    """Return the parts of these names in the catalog's order; None stands for all.

    A part that is chosen alone may take all of the call's time: the default run needs more than a
    call has for it beside the others.

    Raises:
        ValueError: when there is no part of a name.
    """
    if names is None:
        return list(PARTS)
    wanted = {part_named(name).name for name in names}
    chosen = [part for part in PARTS if part.name in wanted]
    return chosen if len(chosen) > 1 else [replace(part, seconds=0.0) for part in chosen]


def check_folder(day: Day) -> None:
    """Check that a folder holds no results of another device or size.

    Raises:
        ValueError: when it does.
    """
    path = day.out / RESULTS
    if not path.is_file():
        return
    before = json.loads(path.read_text(encoding="utf-8"))["day"]
    if before != day.identity:
        raise ValueError(
            f"{day.out} holds results of {before}, and this call is for {day.identity}: "
            "give another folder"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help="only these; one alone has all of the call's time: "
        f"{', '.join(p.name for p in PARTS)}",
    )
    parser.add_argument("--limit_minutes", type=float, default=29.0, help="for this call")
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    parser.add_argument("--tiny", action="store_true", help="does all of it run? In two minutes")
    parser.add_argument("--device", default="cuda", help="PyTorch's name of it (default: cuda)")
    parser.add_argument(
        "--accelerator", help="class path of a Lightning accelerator for a device of its own"
    )
    parser.add_argument("--model_folder", type=Path, help="a pretrained model, for the real runs")
    parser.add_argument("--model_config", default="smollm2-135m", help="that model's config")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Run; return 1 where a part failed."""
    parser = _parser()
    args = parser.parse_args(given)
    day = Day(
        out=args.out.resolve(),
        device=args.device,
        accelerator=args.accelerator,
        tiny=args.tiny,
        model_folder=args.model_folder and args.model_folder.resolve(),
        model_config=args.model_config,
    )
    try:
        chosen = chosen_parts(args.parts)
        check_folder(day)
    except ValueError as error:
        parser.error(str(error))
    if args.limit_minutes <= 0:
        parser.error(f"--limit_minutes is {args.limit_minutes}; it must be positive")
    runner = Runner(day, 60 * args.limit_minutes, args.retry)
    is_well = run_day(runner, chosen)
    print(f"{day.out / PAGE}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
