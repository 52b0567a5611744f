"""The estimates against enumerated joint distributions and brute-force permutations."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.ops.mutual_information import (
    count_pairs,
    estimate_information,
    merge_duplicates,
    permutation_z_score,
)

PRIOR = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
CHANNEL = torch.tensor(  # p(z | x), one row per x
    [[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 0.0]], dtype=torch.float64
)


def entropy(p: Tensor) -> float:
    p = p[p > 0]
    return float(-(p * p.log()).sum())


def enumerate_pairs(channel: Tensor, prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """List all pairs (z, x) with their log p(z | every x), own x and joint probability."""
    x, z = torch.meshgrid(torch.arange(len(prior)), torch.arange(channel.shape[1]), indexing="ij")
    x, z = x.flatten(), z.flatten()
    return channel.log().T[z], x, prior[x] * channel[x, z]


def test_enumerated_joint_gives_the_closed_forms() -> None:
    found = estimate_information(*enumerate_pairs(CHANNEL, PRIOR)[:2], counts=joint())
    marginal, conditional = (
        entropy(PRIOR @ CHANNEL),
        float(PRIOR @ torch.tensor([entropy(p) for p in CHANNEL], dtype=torch.float64)),
    )
    assert found.marginal_entropy == pytest.approx(marginal, abs=1e-12)
    assert found.conditional_entropy == pytest.approx(conditional, abs=1e-12)
    assert found.mutual_information == pytest.approx(marginal - conditional, abs=1e-12)
    # The likeliest of the three prompts for z = 0, 1, 2, 3 is 0, 2, 2, 1.
    hit = 0.5 * 0.7 + 0.25 * (0.5 + 0.5) + 0.25 * 0.4
    assert found.retrieval == pytest.approx(hit, abs=1e-12)
    assert found.retrieval_above_chance == pytest.approx(hit - 1 / 3, abs=1e-12)


def joint() -> Tensor:
    return enumerate_pairs(CHANNEL, PRIOR)[2]


def test_samples_converge_to_the_closed_forms() -> None:
    exact = estimate_information(*enumerate_pairs(CHANNEL, PRIOR)[:2], counts=joint())
    generator = torch.Generator().manual_seed(0)
    x = torch.multinomial(PRIOR, 20_000, replacement=True, generator=generator)
    z = torch.multinomial(CHANNEL[x], 1, generator=generator)[:, 0]
    drawn = estimate_information(CHANNEL.log().T[z], x)
    for name in ("mutual_information", "conditional_entropy", "marginal_entropy", "retrieval"):
        assert getattr(drawn, name) == pytest.approx(getattr(exact, name), abs=0.02), name
    assert drawn.z_score > 50


def test_a_template_has_no_information() -> None:
    """The same distribution for every prompt: high entropy, no information."""
    template = torch.tensor([0.25] * 4).expand(3, 4)
    found = estimate_information(*enumerate_pairs(template, PRIOR)[:2], counts=torch.ones(12))
    assert found.mutual_information == pytest.approx(0.0, abs=1e-7)
    assert found.conditional_entropy == pytest.approx(math.log(4), abs=1e-6)
    assert found.retrieval_above_chance == pytest.approx(0.0, abs=1e-12)
    assert found.z_score == 0.0


def test_a_deterministic_grounded_policy_has_maximal_information() -> None:
    channel = torch.eye(3, dtype=torch.float64)
    found = estimate_information(
        *enumerate_pairs(channel, PRIOR)[:2], counts=enumerate_pairs(channel, PRIOR)[2]
    )
    assert found.mutual_information == pytest.approx(entropy(PRIOR), abs=1e-12)
    assert found.conditional_entropy == pytest.approx(0.0, abs=1e-12)
    assert found.retrieval == 1.0
    assert found.chance == pytest.approx(1 / 3)


def test_z_score_is_that_of_all_permutations() -> None:
    scores = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = torch.tensor([0, 1, 1, 2, 0])
    matched = [
        sum(float(scores[i, x]) for i, x in enumerate(order))
        for order in itertools.permutations(own.tolist())
    ]
    population = torch.tensor(matched, dtype=torch.float64)
    here = float(scores.gather(1, own[:, None]).sum())
    expected = (here - float(population.mean())) / float(population.std(correction=0))
    found = permutation_z_score(scores, own, torch.ones(5, dtype=torch.float64))
    assert found == pytest.approx(expected, abs=1e-9)


def test_z_score_of_unrelated_pairings_is_standard() -> None:
    generator = torch.Generator().manual_seed(2)
    found = torch.tensor(
        [
            estimate_information(
                5 * torch.randn(30, 6, generator=generator) - 20, torch.arange(30) % 6
            ).z_score
            for _ in range(400)
        ]
    )
    assert abs(float(found.mean())) < 0.15
    assert float(found.std()) == pytest.approx(1.0, abs=0.12)


matrices = st.integers(0, 10_000).map(
    lambda seed: torch.randn(7, 4, generator=torch.Generator().manual_seed(seed)).double() * 3 - 9
)
OWN = torch.tensor([0, 0, 1, 2, 2, 2, 3])
COUNTS = torch.tensor([1, 3, 1, 2, 1, 1, 1])


def close(a: object, b: object) -> None:
    for name in (
        "mutual_information",
        "z_score",
        "conditional_entropy",
        "marginal_entropy",
        "retrieval",
        "chance",
    ):
        assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-9), name


@given(matrices)
def test_counts_are_copies_and_order_does_not_matter(scores: Tensor) -> None:
    merged = estimate_information(scores, OWN, counts=COUNTS)
    close(
        merged,
        estimate_information(scores.repeat_interleave(COUNTS, 0), OWN.repeat_interleave(COUNTS)),
    )
    rows, columns = torch.randperm(7), torch.randperm(4)
    moved = estimate_information(
        scores[rows][:, columns], torch.argsort(columns)[OWN[rows]], counts=COUNTS[rows]
    )
    close(merged, moved)


@given(matrices)
def test_equal_prompts_merge_into_one_with_both_shares(scores: Tensor) -> None:
    twice = torch.cat([scores, scores[:, :1]], dim=1)  # prompt 4 is prompt 0 once more
    apart = OWN.clone()
    apart[1] = 4
    merged, split = estimate_information(scores, OWN), estimate_information(twice, apart)
    assert split.mutual_information == pytest.approx(merged.mutual_information, abs=1e-9)
    assert split.marginal_entropy == pytest.approx(merged.marginal_entropy, abs=1e-9)


@given(matrices)
def test_information_is_bounded_and_ignores_how_likely_a_thought_is_anyway(scores: Tensor) -> None:
    found = estimate_information(scores, OWN, counts=COUNTS)
    shares = torch.zeros(4, dtype=torch.float64).index_add(0, OWN, COUNTS.double())
    assert found.mutual_information <= entropy(shares / shares.sum()) + 1e-9
    assert found.marginal_entropy == pytest.approx(
        found.mutual_information + found.conditional_entropy, abs=1e-9
    )
    shifted = estimate_information(scores + torch.arange(7.0)[:, None], OWN, counts=COUNTS)
    assert shifted.mutual_information == pytest.approx(found.mutual_information, abs=1e-9)
    assert shifted.z_score == pytest.approx(found.z_score, abs=1e-9)


@given(matrices)
def test_rows_without_counts_and_prompts_without_thoughts_are_ignored(scores: Tensor) -> None:
    lost = scores.clone()
    lost[6] = math.nan  # the only thought of prompt 3
    counts = torch.tensor([1, 1, 1, 1, 1, 1, 0])
    close(
        estimate_information(lost, OWN, counts=counts),
        estimate_information(scores[:6, :3], OWN[:6]),
    )


def test_lengths_divide_after_the_sum_over_prompts() -> None:
    scores = torch.tensor([[-2.0, -6.0], [-9.0, -3.0]], dtype=torch.float64)
    found = estimate_information(scores, torch.tensor([0, 1]), lengths=torch.tensor([2, 3]))
    marginal = [math.log((math.exp(-2) + math.exp(-6)) / 2), math.log(math.exp(-9) + math.exp(-3))]
    marginal[1] -= math.log(2)
    assert found.conditional_entropy == pytest.approx((2 / 2 + 3 / 3) / 2)
    assert found.marginal_entropy == pytest.approx(-(marginal[0] / 2 + marginal[1] / 3) / 2)


def test_nothing_to_measure_is_nan() -> None:
    found = estimate_information(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert math.isnan(found.mutual_information)
    assert math.isnan(found.retrieval_above_chance)


def test_impossible_pairings_leave_the_z_score_finite() -> None:
    scores = torch.eye(3, dtype=torch.float64).log()
    # The largest value that three pairings allow: sqrt((n − 1)(P − 1)).
    assert estimate_information(scores, torch.arange(3)).z_score == pytest.approx(2.0, rel=1e-3)


def test_duplicates_are_merged_with_counts() -> None:
    assert merge_duplicates(["b", "a", "b"]) == (["b", "a"], [0, 1, 0])
    left, right, counts = count_pairs([0, 1, 0, 0], [2, 2, 2, 1])
    assert (left.tolist(), right.tolist(), counts.tolist()) == ([0, 1, 0], [2, 2, 1], [2, 1, 1])
