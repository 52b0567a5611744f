"""Every pairing's log-prob equals the trainer's for that pairing alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.engines import cross_scoring
from ragen_pl.rollout.engines.cross_scoring import cross_score

PREFIXES = [(3, 10, 11), (3, 12), (3, 10, 11, 12, 13, 14, 15), (3, 40, 41, 42)]
CONTINUATIONS = [(20, 21, 22), (23,), (20, 21, 25, 26, 27), (30, 31)]


@pytest.fixture(scope="module")
def language() -> LanguageModel:
    small = EmbeddedModel(
        hidden_size=32, intermediate_size=64, num_heads=4, num_key_value_heads=2, init_std=0.3
    )
    return small.build([f"w{i}" for i in range(40)], seed=3)


@pytest.fixture(scope="module")
def expected(language: LanguageModel) -> torch.Tensor:
    """Score each pairing by the training forward, one at a time, at temperature 0.7."""
    policy, table = Policy(language.model), torch.zeros(len(CONTINUATIONS), len(PREFIXES))
    for i, continuation in enumerate(CONTINUATIONS):
        for j, prefix in enumerate(PREFIXES):
            row = torch.tensor([[*prefix, *continuation]])
            mask = torch.arange(row.shape[1])[None] >= len(prefix)
            with torch.no_grad():
                table[i, j] = policy(row, mask, torch.ones_like(mask), 0.7)[0].sum()
    return table


@pytest.mark.parametrize("budget", [1, 25, 40, 4096])
def test_every_pairing_equals_the_trainers(
    language: LanguageModel, expected: torch.Tensor, budget: int
) -> None:
    found = cross_score(
        language.model, PREFIXES, CONTINUATIONS, temperature=0.7, token_budget=budget
    )
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_a_prefix_is_read_once(language: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = []
    original = cross_scoring._forward

    def record(*arguments: Any) -> torch.Tensor:
        states = original(*arguments)
        blocks.append(tuple(states.shape[:2]))
        return states

    monkeypatch.setattr(cross_scoring, "_forward", record)
    cross_score(language.model, [PREFIXES[2]] * 3, CONTINUATIONS, token_budget=2 * 12)
    # The prefix but for its last token, and two batches of two continuations, sorted by length.
    assert blocks == [(1, 6), (2, 2), (2, 5)] * 3


def test_prefixes_of_any_length_score_together_as_alone(language: LanguageModel) -> None:
    prefixes = [(3, 10), (3, 10, 11), (3, 10, 11, 12)]
    together = cross_score(language.model, prefixes, CONTINUATIONS)
    for column, prefix in enumerate(prefixes):
        alone = cross_score(language.model, [prefix], CONTINUATIONS)[:, 0]
        torch.testing.assert_close(together[:, column], alone, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_prefixes(
    language: LanguageModel,
    expected: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
) -> None:
    """Every rank runs as many forwards and has its columns; together they are the table."""
    offered: list[dict[int, torch.Tensor]] = []
    forwards: list[int] = []
    original = cross_scoring._forward

    def count(*arguments: Any) -> torch.Tensor:
        forwards[-1] += 1
        return original(*arguments)

    monkeypatch.setattr(cross_scoring, "_forward", count)
    monkeypatch.setattr(cross_scoring, "world_size", lambda: ranks)
    for place in range(ranks):
        monkeypatch.setattr(cross_scoring, "rank", lambda place=place: place)

        def gather(columns: dict[int, torch.Tensor]) -> list[dict[int, torch.Tensor]]:
            offered.append(columns)
            whole = {j: torch.zeros(len(CONTINUATIONS)) for j in range(len(PREFIXES))}
            return [whole]

        monkeypatch.setattr(cross_scoring, "gather_objects", gather)
        forwards.append(0)
        cross_score(language.model, PREFIXES, CONTINUATIONS, temperature=0.7, token_budget=1)
    assert len(set(forwards)) == 1
    table = {j: column for part in offered for j, column in part.items()}
    found = torch.stack([table[j] for j in range(len(PREFIXES))], dim=1)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_nothing_gives_an_empty_table(language: LanguageModel) -> None:
    assert cross_score(language.model, [], CONTINUATIONS).shape == (4, 0)
    assert cross_score(language.model, PREFIXES, []).shape == (0, 4)
