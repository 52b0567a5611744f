"""The sampler that is wrong on purpose: how wrong, and that it stays the sampler of its policy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from benchmarks.quantized_sampler import Quantized, QuantizedSampler, rounded
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.types import Completion, EpisodeId, Request, Sampling

SAMPLING = Sampling(max_new_tokens=6)
REQUESTS = [
    Request((5, 6, 7), EpisodeId(iteration=0, group_id=0, member=member), number=0)
    for member in range(4)
]


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_a_row_is_rounded_to_evenly_spaced_values(bits: int) -> None:
    weight = torch.randn(5, 400, generator=torch.Generator().manual_seed(0))
    found = rounded(weight, bits)
    steps = 2 ** (bits - 1) - 1
    spacing = weight.abs().amax(1, keepdim=True) / steps
    assert all(len(row.unique()) <= 2 * steps + 1 for row in found)
    assert bool(((found - weight).abs() <= spacing / 2 + 1e-6).all())
    torch.testing.assert_close(found / spacing, (found / spacing).round(), atol=1e-4, rtol=0)
    assert torch.equal(rounded(weight[0], bits), weight[0]), "vectors stay"
    assert not bool(rounded(torch.zeros(2, 3), bits).any())


@pytest.fixture(scope="module")
def language() -> Any:
    sizes = EmbeddedModel(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2)
    return sizes.build(["up", "down"], seed=0)


def sample(sampler: QuantizedSampler) -> list[Completion]:
    sampler.reset()
    return sampler(REQUESTS, SAMPLING)


def log_probs(completions: list[Completion]) -> torch.Tensor:
    return torch.tensor([sum(completion.log_probs) for completion in completions])


def built(language: Any, bits: int) -> QuantizedSampler:
    return Quantized(bits=bits).build(language, 0, 32, nullcontext)


def test_it_samples_from_rounded_weights_and_leaves_the_policys(language: Any) -> None:
    before = {name: weight.clone() for name, weight in language.model.named_parameters()}
    coarse, fine = sample(built(language, 2)), sample(built(language, 16))
    assert not torch.allclose(log_probs(coarse), log_probs(fine), atol=1e-3)
    for name, weight in language.model.named_parameters():
        assert torch.equal(weight, before[name])


def test_a_reset_takes_the_policys_new_weights(language: Any) -> None:
    sampler = built(language, 4)
    before = log_probs(sample(sampler))
    torch.testing.assert_close(log_probs(sample(sampler)), before)
    with torch.no_grad():
        for weight in language.model.parameters():
            weight.mul_(1.5)
    torch.testing.assert_close(log_probs(sampler(REQUESTS, SAMPLING)), before)  # not before it
    assert not torch.allclose(log_probs(sample(sampler)), before)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="bits is 1"):
        Quantized(bits=1)
    with pytest.raises(ValueError, match="cuda_graphs is true"):
        Quantized(cuda_graphs=True)
