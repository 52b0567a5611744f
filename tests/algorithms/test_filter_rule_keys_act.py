"""No key of a filter rule is ignored: each one, if changed, selects other groups."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ragen_pl.algorithms import filters as filter_rules
from ragen_pl.algorithms.filters import FilterRule
from tests.support.config_key_effects import KeyProof, Outcome, every_key, spelled

SCORES = torch.tensor([0.5, 4.0, 1.0, math.nan, 2.0, 3.0, 1.5, 0.1], dtype=torch.float64)
OTHER: dict[str, tuple[Any, ...]] = {
    "TopFraction.fraction": (0.5, 0.0),
    "TopK.k": (2, 0),
    "TopP.p": (0.5, 0.0),
    "SoftmaxTopP.p": (0.5, 0.0),
    "SoftmaxTopP.temperature": (1.0, 0.0),
    "MinP.p": (0.6, 0.0),
    "PercentileBand.low": (0.5, -1.0),
    "PercentileBand.high": (0.5, 2.0),
    "SoftWeights.power": (2.0, 0.0),
}


def proof(kind: type[FilterRule]) -> KeyProof:
    def choose(arguments: dict[str, Any]) -> Outcome:
        return {"weights": kind(**arguments)(SCORES)}

    return KeyProof(kind, choose, others=OTHER)


PROOFS = {
    name: proof(kind)
    for name, kind in vars(filter_rules).items()
    if isinstance(kind, type) and issubclass(kind, FilterRule) and kind is not FilterRule
}


def test_the_rules_are_found() -> None:
    assert len(PROOFS) >= 7


@pytest.mark.parametrize("subject", PROOFS)
def test_the_same_rule_twice_chooses_the_same(subject: str) -> None:
    PROOFS[subject].check_reproducible()


@pytest.mark.parametrize(("subject", "path"), every_key(PROOFS), ids=spelled)
def test_a_key_of_a_rule_acts(subject: str, path: tuple[str, ...]) -> None:
    PROOFS[subject].check(path)
