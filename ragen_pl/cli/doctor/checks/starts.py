"""Evaluation starts, which must not be training's."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.envs.eval_seeds import overlap
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.mixture import env_of_set
from ragen_pl.runtime.findings import Finding, failure, ok, warning
from ragen_pl.training.evaluation.sets import EvaluationSet

_TRAINING_STARTS = 1000
_MOST_STARTS = 256
_FEW = 8
"""A task with no more starts than these, such as a bandit with one pair of arms, cannot keep some
of them apart."""


def check_starts(subject: ExaminedRun) -> Iterator[Finding]:
    """Build every evaluation set and compare its starts with the run's first training starts."""
    data, first = subject.data, subject.first_seed
    seeds, found = range(first, first + _TRAINING_STARTS), False
    size = min(data.evaluation.size, _MOST_STARTS)
    kinds = {name: overlap(env, seeds, env, ()).starts for name, env in data.envs.items()}
    few = [name for name, count in kinds.items() if count <= _FEW]
    for index, (name, env) in enumerate(data.eval_sets.items()):
        pin = data.evaluation.pins.get(name)
        try:
            eval_set = EvaluationSet.build(name, env, index, size, pin)
        except ConfigError as error:
            found = True
            yield failure(str(error), "as the message says")
            continue
        own = env_of_set(name, data.envs)
        if own is None:  # a task that is not trained on
            continue
        shared = overlap(env, eval_set.seeds, data.envs[own], seeds)
        if shared.shared and own not in few:
            found = True
            yield warning(
                f"data.eval_sets.{name}: {shared.shared} of its {shared.starts} starts are among "
                f"the run's first {_TRAINING_STARTS} training starts: success on these measures "
                "training, not generalization",
                "let the environment keep evaluation starts apart (an argument such as split)",
            )
    names = ", ".join(data.eval_sets)
    if few == [""]:
        count = kinds[""]
        yield ok(f"the task has {count} different starts only, so that {names} repeats training's")
    elif not found:
        but = f"; {', '.join(few)} has {_FEW} different starts or fewer" if few else ""
        yield ok(f"none of {names} shares a start with {_TRAINING_STARTS} of training{but}")
