"""Comparison of two runs' policies on the initial states both were evaluated on.

``python benchmarks/compare.py RUN_DIR OTHER_RUN_DIR [--policy final]``

Prints, per evaluation set and temperature, how much more often the second run's policy succeeds,
with the 95 % interval of the difference, paired by initial state. An interval that excludes zero is
a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from ragen_pl.report.tables import PolicyResult, format_table
from ragen_pl.training.evaluation import EvalResult, paired_difference

Key = tuple[str, float | None]
"""Evaluation set and temperature."""


def read_scores(run: Path, policy: str) -> dict[Key, EvalResult]:
    """Read a policy's scores from a run folder.

    Raises:
        ValueError: when the run has no results, or none of that policy.
    """
    path = run / "results.json"
    if not path.is_file():
        raise ValueError(f"{run} holds no {path.name}: give the folder of a run")
    results = json.loads(path.read_text(encoding="utf-8"))
    entries = [PolicyResult.from_dict(entry) for entry in results["evaluations"]]
    scores = {(e.eval_set, e.temperature): e.result for e in entries if e.policy == policy}
    if not scores:
        known = ", ".join(dict.fromkeys(entry.policy for entry in entries))
        raise ValueError(f"{run} has no scores of the policy {policy!r}; it has {known}")
    return scores


def compare(before: dict[Key, EvalResult], after: dict[Key, EvalResult]) -> str:
    """Return a table with a row per evaluation set and temperature that both have.

    Raises:
        ValueError: when there is none, or one was played on different starts.
    """
    if not before.keys() & after.keys():
        raise ValueError(
            f"the runs share no evaluation set at one temperature: the first has {_named(before)}, "
            f"the second {_named(after)}"
        )
    rows = [["eval_set", "T", "first", "second", "difference [95 % interval]"]]
    for eval_set, temperature in before.keys() & after.keys():
        old, new = before[eval_set, temperature], after[eval_set, temperature]
        try:
            gain = paired_difference(old, new)
        except ValueError as error:
            raise ValueError(f"{_named([(eval_set, temperature)])}: {error}") from error
        rows.append(
            [
                eval_set,
                "–" if temperature is None else f"{temperature:g}",
                f"{100 * old.success:.1f} %",
                f"{100 * new.success:.1f} %",
                f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]",
            ]
        )
    return format_table([rows[0], *sorted(rows[1:])])


def _named(keys: Iterable[Key]) -> str:
    """List evaluation sets with their temperatures."""
    return ", ".join(p if t is None else f"{p} at T={t:g}" for p, t in keys)


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--policy", default="final")
    given = parser.parse_args(arguments)
    try:
        first, second = (read_scores(run, given.policy) for run in (given.first, given.second))
        print(compare(first, second))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
