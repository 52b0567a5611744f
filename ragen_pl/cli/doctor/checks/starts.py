"""Evaluation starts, which must not be training's."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.finding import Finding, ok, warning
from ragen_pl.cli.doctor.subject import Subject
from ragen_pl.training.evaluation_sets import EvaluationSet

_TRAINING_STARTS = 1000
_MOST_STARTS = 256


def check_starts(subject: Subject) -> Iterator[Finding]:
    """Build every evaluation set and compare its starts with the run's first training starts."""
    data, first = subject.data, subject.first_seed
    seeds, found = range(first, first + _TRAINING_STARTS), False
    size = min(data.evaluation.size, _MOST_STARTS)
    for index, (name, env) in enumerate(data.eval_sets.items()):
        for text in EvaluationSet.build(name, env, index, size).warnings(data.env, seeds):
            found = True
            yield warning(
                text,
                "let the environment keep evaluation starts apart (an argument such as split), or "
                "evaluate on other starts",
            )
    if not found:
        yield ok(
            f"none of {', '.join(data.eval_sets)} shares a start with {_TRAINING_STARTS} of "
            "training"
        )
