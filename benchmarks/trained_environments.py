"""What runs reached in the environments of the docs' table: a record, and the table made of it.

``benchmarks/environments.py --runs FOLDER`` adds finished runs to ``trained_environments.yaml``,
each under the name of its folder. An entry that it replaces keeps its label and its further seeds;
its note, which is about one run, stays only with that run. A folder ``sudoku.seed2`` is a further
seed of ``sudoku``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.laboratory_report import table
from ragen_pl.runtime.durable_files import write_text
from ragen_pl.training.evaluation.results import PolicyResult
from ragen_pl.training.run_folder import FINAL, finished_iterations, read_results

RECORD = Path(__file__).with_name("trained_environments.yaml")
_HEADING = """\
# What runs reached on their first evaluation set: success in percent, with the ends of its 95 %
# interval where they are known. Written by environments.py --runs; labels and notes by hand.
"""
_WARM_STARTED = "warm-started"
_FURTHER = ".seed"
"""What stands between an entry's name and the number of a further seed."""


@dataclass(frozen=True)
class Success:
    """Success in percent, and its 95 % interval."""

    percent: float
    low: float | None = None
    high: float | None = None

    def whole(self) -> str:
        """Return it in whole percent, as the cell of a table."""
        return f"{self.percent:.0f}" + self._interval(".0f")

    def exact(self, *, bold: bool = False) -> str:
        """Return it to a tenth."""
        text = f"{self.percent:.1f} %"
        return (f"**{text}**" if bold else text) + self._interval(".1f")

    def _interval(self, digits: str) -> str:
        if self.low is None or self.high is None:
            return ""
        return f" [{self.low:{digits}}, {self.high:{digits}}]"

    def is_above(self, other: Success) -> bool:
        """Tell whether it is better by more than the intervals, where both have one."""
        return self.low is not None and other.high is not None and self.low > other.high


@dataclass(frozen=True)
class Seed:
    """Success in percent of a run on a further seed: at its end, and after imitation."""

    final: float
    imitated: float | None = None
    greedy: float | None = None
    """At the end, at temperature 0."""

    @classmethod
    def of(cls, trained: Trained) -> Seed:
        """Keep a run as a further seed of another."""
        imitated = trained.imitated
        before = None if imitated is None else imitated.percent
        return cls(trained.final.percent, before, trained.greedy[1])


@dataclass(frozen=True)
class Trained:
    """A run's policy after imitation and at its end, at the temperature of its validations."""

    final: Success
    seconds: float | None = None
    """All included; None where it was not noted."""
    imitated: Success | None = None
    """None where a run has no warm start."""
    greedy: tuple[float | None, float | None] = (None, None)
    """Percent at temperature 0, after imitation and at the end."""
    label: str = ""
    """What the table calls it; its config by default."""
    note: str = ""
    """What is to be known about the seconds, or the run."""
    seeds: Mapping[int, Seed] = field(default_factory=dict)
    """Further seeds."""


def trained_of(run_dir: Path) -> Trained | None:
    """Read a finished run; None for any other."""
    if finished_iterations(run_dir) is None:
        return None
    content = read_results(run_dir)
    assert content is not None
    entries = [PolicyResult.from_dict(each) for each in content["evaluations"]]
    first = entries[0].eval_set
    sampled: dict[str, Success] = {}
    greedy: dict[str, float] = {}
    for entry in entries:
        result = entry.result
        if entry.eval_set != first or entry.temperature is None:
            continue
        if entry.temperature > 0:  # the headline's temperature stands first
            found = Success(*(round(100 * x, 1) for x in (result.success, result.low, result.high)))
            sampled.setdefault(entry.policy, found)
        else:
            greedy[entry.policy] = round(100 * result.success, 1)
    return Trained(
        final=sampled[FINAL],
        seconds=round(content["seconds"]),
        imitated=sampled.get(_WARM_STARTED),
        greedy=(greedy.get(_WARM_STARTED), greedy.get(FINAL)),
    )


def read_record(path: Path = RECORD) -> dict[str, Trained]:
    """Read what runs reached, by name."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {str(name): _entry(given) for name, given in content.items()}


def _entry(given: Mapping[str, Any]) -> Trained:
    fields = dict(given)
    for key in ("final", "imitated"):
        if key in fields:
            fields[key] = Success(*fields[key])
    if "greedy" in fields:
        fields["greedy"] = tuple(fields["greedy"])
    fields["seeds"] = {seed: Seed(**each) for seed, each in fields.get("seeds", {}).items()}
    return Trained(**fields)


def add_runs(runs: Path, path: Path = RECORD) -> dict[str, Trained]:
    """Add the finished runs of a folder to the record, and return all of it."""
    record = read_record(path)
    for folder in sorted(each for each in runs.iterdir() if each.is_dir()):
        trained = trained_of(folder)
        if trained is None:
            continue
        name, is_further, seed = folder.name.rpartition(_FURTHER)
        if is_further:
            if not seed.isdecimal() or name not in record:
                raise SystemExit(f"{folder} is a further seed of nothing in {path}: rename it")
            known = record[name]
            seeds = {**known.seeds, int(seed): Seed.of(trained)}
            record[name] = replace(known, seeds=dict(sorted(seeds.items())))
            continue
        if folder.name in record:
            known = record[folder.name]
            kept = replace(trained, label=known.label, seeds=known.seeds)
            trained = replace(kept, note=known.note if kept == replace(known, note="") else "")
        record[folder.name] = trained
    content = {name: _plain(each) for name, each in record.items()}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None)
    write_text(path, _HEADING + text)
    return record


def _plain(trained: Trained) -> dict[str, Any]:
    """Return JSON types, without what is not known."""
    found = asdict(trained)
    for key in ("final", "imitated"):
        if found[key] is not None:
            found[key] = [value for value in found[key].values() if value is not None]
    found["greedy"] = list(trained.greedy)
    found["seeds"] = {
        seed: {key: value for key, value in each.items() if value is not None}
        for seed, each in found["seeds"].items()
    }
    empty: tuple[Any, ...] = (None, "", [None, None], {})
    return {key: value for key, value in found.items() if value not in empty}


def trained_cell(trained: Trained | None) -> str:
    """Return the cell of the table of environments."""
    if trained is None:
        return "–"
    before = "" if trained.imitated is None else f"{trained.imitated.whole()} → "
    return before + trained.final.whole()


def trained_table(record: Mapping[str, Trained]) -> str:
    """Return the record as Markdown; what is better than imitation beyond the intervals is bold."""
    return table(
        (
            "config",
            "after imitation",
            "final",
            "greedy",
            "further seeds (greedy)",
            "seconds, all included",
        ),
        [_row(name, each) for name, each in record.items()],
    )


def _row(name: str, trained: Trained) -> tuple[str, ...]:
    imitated = trained.imitated
    is_clear = imitated is not None and trained.final.is_above(imitated)
    return (
        trained.label or f"`{name}.yaml`",
        "–" if imitated is None else imitated.exact(),
        trained.final.exact(bold=is_clear),
        _from_to(*trained.greedy),
        "; ".join(_further(each) for each in trained.seeds.values()) or "–",
        _seconds(trained),
    )


def _further(seed: Seed) -> str:
    greedy = "" if seed.greedy is None else f" ({seed.greedy:.1f})"
    return _from_to(seed.imitated, seed.final) + greedy


def _seconds(trained: Trained) -> str:
    if trained.seconds is None:
        return trained.note or "–"
    return f"{trained.seconds:,.0f}" + (f", {trained.note}" if trained.note else "")


def _from_to(before: float | None, after: float | None) -> str:
    if after is None:
        return "–"
    return ("" if before is None else f"{before:.1f} → ") + f"{after:.1f} %"
