"""The command ``run.py pins``: the fingerprints of a configuration's evaluation sets."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.configured_parts import configured_parts
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationSet

_DESCRIPTION = """\
Print the fingerprints of a configuration's evaluation sets as YAML, for data.evaluation.pins. Takes
the configs and options of fit.

  run.py pins --config sokoban
"""


def print_pins(argv: Sequence[str]) -> None:
    """Print the pins of a configuration's evaluation sets as YAML; pins it has are not checked.

    Args:
        argv: Arguments after ``pins``, those of ``fit``, with paths in place of configs' names.

    Raises:
        ConfigError: when the configuration is wrong or a set has no initial states.
    """
    _, rest = CommandParser("pins", _DESCRIPTION).parse_before_keys(list(argv))
    parts = configured_parts(rest)
    parts.check_trainer()
    content = {"data": {"evaluation": {"pins": pins_of(parts.datamodule)}}}
    print(yaml.safe_dump(content, sort_keys=False), end="")


def pins_of(data: RolloutDataModule) -> dict[str, str]:
    """Return the fingerprint of each evaluation set by name, at the configured size."""
    return {
        name: EvaluationSet.build(name, env, index, data.evaluation.size).fingerprint
        for index, (name, env) in enumerate(data.eval_sets.items())
    }
