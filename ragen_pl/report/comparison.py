"""Comparison of two policies' results, paired start by start."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen_pl.errors import ConfigError
from ragen_pl.report.tables import format_table
from ragen_pl.training.evaluation.results import EvalResult, PolicyResult
from ragen_pl.training.evaluation.success_statistics import (
    PairedDifference,
    mean_over_starts,
    paired_difference,
)
from ragen_pl.training.run_folder import FINAL, RESULTS


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in success of two policies on one evaluation set at one temperature."""

    eval_set: str
    temperature: float | None
    """None for baselines, which have none."""
    first: float
    """Success of the first policy: the mean over the initial states that both played, of each
    state's share of solved trajectories."""
    second: float
    paired: PairedDifference
    """Second policy minus first, at the initial states that both played."""
    fingerprints_known: bool
    """Whether both results have the set's fingerprint; if not, they are of an earlier version, and
    only the seeds were compared."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, without nesting."""
        return {
            "eval_set": self.eval_set,
            "temperature": self.temperature,
            "first": self.first,
            "second": self.second,
            "difference": self.paired.mean,
            "low": self.paired.low,
            "high": self.paired.high,
            "p_value": self.paired.p_value,
            "starts": self.paired.count,
            "fingerprints_known": self.fingerprints_known,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two policies' results say of each other."""

    differences: tuple[Difference, ...]
    refused: tuple[str, ...]
    """Reasons, one per evaluation set and temperature that both have and that cannot be paired."""


def compare(first: Sequence[PolicyResult], second: Sequence[PolicyResult]) -> list[Difference]:
    """Compare two policies on every evaluation set and temperature that both were scored on.

    Args:
        first: Results of one policy, such as those of a run folder (``read_policy``).
        second: Results of the other one.

    Raises:
        ValueError: when they share no set at one temperature, or a set that both have differs.
    """
    comparison = compare_what_is_comparable(first, second)
    if comparison.refused:
        raise ValueError("\n".join(comparison.refused))
    return list(comparison.differences)


def compare_what_is_comparable(
    first: Sequence[PolicyResult], second: Sequence[PolicyResult]
) -> Comparison:
    """Compare two policies, and list the evaluation sets that cannot be compared.

    Raises:
        ValueError: when the results share no evaluation set at one temperature.
    """
    ours, theirs = _by_key(first), _by_key(second)
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise ValueError(
            f"the results share no evaluation set at one temperature: the first has "
            f"{_named(ours)}, the second {_named(theirs)}"
        )
    differences, refused = list[Difference](), list[str]()
    for key in shared:
        try:
            differences.append(difference_of(ours[key], theirs[key]))
        except ValueError as error:
            refused.append(f"{_named([key])}: {error}")
    return Comparison(tuple(differences), tuple(refused))


def paired_by_start(first: EvalResult, second: EvalResult) -> PairedDifference:
    """Compare two results of one evaluation set, second minus first.

    Args:
        first: Result of one policy.
        second: Result of the other one.

    Raises:
        ValueError: when they have different initial states. (One at which the environment failed
            for a policy is missing from that policy's result.)
    """
    return paired_difference(*_pairs(first, second, same_set=False))


def _pairs(
    first: EvalResult, second: EvalResult, *, same_set: bool
) -> tuple[list[list[bool]], list[list[bool]]]:
    """Return both policies' successes by initial state, of the states that both played; the errors
    are those of ``paired_by_start``.

    Args:
        first: Result of one policy.
        second: Result of the other one.
        same_set: Whether both are known to be of one set, so that starts of which one result is
            missing, as where the environment failed, are left out.
    """
    known = (first.repeated_seeds, second.repeated_seeds)
    old, new = _outcomes_by_start(first, known), _outcomes_by_start(second, known)
    if same_set and old.keys() & new.keys():
        old = {seed: outcomes for seed, outcomes in old.items() if seed in new}
    elif old.keys() != new.keys():
        unpaired = sorted(old.keys() ^ new.keys())
        raise ValueError(
            f"the policies were not played on the same starts: {len(unpaired)} seeds are in only "
            f"one (such as {unpaired[0]}); evaluate both on the same evaluation set with the same "
            "data.evaluation.size (a start at which the environment failed is missing, too)"
        )
    return list(old.values()), [new[seed] for seed in old]


def difference_of(first: PolicyResult, second: PolicyResult) -> Difference:
    """Compare two policies on the evaluation set that both results are of.

    Raises:
        ValueError: when the sets differ, by their fingerprints or their initial states.
    """
    known = None not in (first.fingerprint, second.fingerprint)
    if known and first.fingerprint != second.fingerprint:
        raise ValueError(
            f"the evaluation sets differ, with fingerprints {first.fingerprint} and "
            f"{second.fingerprint}: evaluate both policies on one set, with one version of it"
        )
    old, new = _pairs(first.result, second.result, same_set=known)
    difference = paired_difference(old, new)
    means = mean_over_starts(old), mean_over_starts(new)
    return Difference(first.eval_set, first.temperature, *means, difference, known)


def _outcomes_by_start(
    result: EvalResult, repeated: Sequence[Mapping[int, int]]
) -> dict[int, list[bool]]:
    """Return the success of each trajectory per initial state, by the smallest seed that has it.

    Args:
        result: One policy's result.
        repeated: ``repeated_seeds`` of all results that are compared: where the environment failed
            for one of them, its own lacks seeds.
    """
    outcomes: defaultdict[int, list[bool]] = defaultdict(list)
    for seeds, success in ((result.solved_seeds, True), (result.failed_seeds, False)):
        for seed in seeds:
            start = min(each.get(seed, seed) for each in repeated)
            outcomes[start].append(success)
    return dict(sorted(outcomes.items()))


_Key = tuple[str, float | None]
"""Evaluation set and temperature."""


def _by_key(results: Iterable[PolicyResult]) -> dict[_Key, PolicyResult]:
    return {(each.eval_set, each.temperature): each for each in results}


def _named(keys: Iterable[_Key]) -> str:
    """List evaluation sets with their temperatures."""
    return ", ".join(p if t is None else f"{p} at T={t:g}" for p, t in keys)


# --- files and text -------------------------------------------------------------------------------


def read_policy(path: Path, policy: str | None = None) -> list[PolicyResult]:
    """Read one policy's results from a run folder or a file of results.

    Args:
        path: A run folder, its ``results.json``, or a file that ``validate`` or ``test`` wrote.
        policy: The policy's name in the file; None for the one that the file is about: a run's
            final policy, or the one that ``validate`` or ``test`` was given.

    Raises:
        ConfigError: when there are no results, or none of that policy.
    """
    file = path / RESULTS if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"{path}: there is no {file.name if path.is_dir() else 'such file'}; give the folder "
            f"of a run, its {RESULTS}, or a file in its evaluations/"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        results = [PolicyResult.from_dict(entry) for entry in content["evaluations"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file} holds no results of ragen-pl ({type(error).__name__}: {error})"
        ) from error
    known = list(dict.fromkeys(each.policy for each in results))
    chosen = policy or content.get("policy", FINAL)
    if chosen not in known:
        raise ConfigError(
            f"{path} has no results of the policy {chosen!r}; it has {', '.join(known) or 'none'}"
            "\n  choose one with --policy, if there are several"
        )
    return [each for each in results if each.policy == chosen]


def format_comparison(comparison: Comparison, first: str, second: str) -> str:
    """Return a table of differences, in points, with the sets that were refused below.

    Args:
        first: Name of the first policy.
        second: Name of the second policy.
    """
    parts = [f"{second} minus {first}: success as the mean over initial states, paired by them"]
    if comparison.differences:
        header = ["", "T", "first", "second", "difference [95 % interval]", "p", "starts"]
        parts.append(format_table([header, *map(_row, comparison.differences)]))
    parts += [f"refused: {reason}" for reason in comparison.refused]
    if not all(each.fingerprints_known for each in comparison.differences):
        parts.append(
            "without fingerprints on both sides, only the seeds of the starts were compared"
        )
    return "\n".join(parts)


def _row(each: Difference) -> list[str]:
    gain = each.paired
    return [
        each.eval_set,
        "–" if each.temperature is None else f"{each.temperature:g}",
        f"{100 * each.first:.1f} %",
        f"{100 * each.second:.1f} %",
        f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]",
        f"{gain.p_value:.2g}",
        str(gain.count),
    ]


def to_json(comparisons: Mapping[str, Comparison], first: str) -> str:
    """Return comparisons with one policy as JSON.

    Args:
        comparisons: Comparisons by the name of the second policy.
        first: Name of the policy that all are compared with.
    """
    content = {
        "first": first,
        "comparisons": [
            {
                "second": name,
                "differences": [each.to_dict() for each in comparison.differences],
                "refused": list(comparison.refused),
            }
            for name, comparison in comparisons.items()
        ],
    }
    return json.dumps(content, indent=1)
