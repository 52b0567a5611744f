"""Compare the policies of two runs on the starts both were scored on.

``python benchmarks/compare.py RUN_DIR OTHER_RUN_DIR [--policy final]``

Prints, per panel and temperature, how much more often the second run's policy succeeds, with the
95 % interval of the difference paired start by start: one that excludes zero is a difference.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ragen_pl.evaluation import Score, paired_difference
from ragen_pl.report import PolicyScore, align

Key = tuple[str, float | None]
"""Panel and temperature."""


def read_scores(run: Path, policy: str) -> dict[Key, Score]:
    """Read a policy's scores from a run folder.

    Raises:
        ValueError: when the run has none of that policy.
    """
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    entries = [PolicyScore.from_plain(entry) for entry in results["evaluations"]]
    scores = {(e.panel, e.temperature): e.score for e in entries if e.policy == policy}
    if not scores:
        known = ", ".join(dict.fromkeys(entry.policy for entry in entries))
        raise ValueError(f"{run} has no scores of the policy {policy!r}; it has {known}")
    return scores


def compare(before: dict[Key, Score], after: dict[Key, Score]) -> str:
    """Return a table with a row per panel and temperature that both have."""
    rows = [["panel", "T", "first", "second", "difference [95 % interval]"]]
    for panel, temperature in before.keys() & after.keys():
        old, new = before[panel, temperature], after[panel, temperature]
        gain = paired_difference(old, new)
        rows.append(
            [
                panel,
                "–" if temperature is None else f"{temperature:g}",
                f"{100 * old.success:.1f} %",
                f"{100 * new.success:.1f} %",
                f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]",
            ]
        )
    return align([rows[0], *sorted(rows[1:])])


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--policy", default="final")
    given = parser.parse_args(arguments)
    print(compare(read_scores(given.first, given.policy), read_scores(given.second, given.policy)))


if __name__ == "__main__":
    main()
