"""Muon on stacks of matrices takes the steps of PyTorch's Muon, bit for bit in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Muon, Optimizer

from ragen_pl.runtime.threads import torch_threads
from ragen_pl.training import muon
from ragen_pl.training.muon import StackedMuon, orthogonalized, stacks

SHAPES = [(24, 24), (64, 24), (24, 64), (24, 24), (64, 24), (24, 64), (24, 24), (1, 8)]
COEFFICIENTS = (3.4445, -4.775, 2.0315)


def make_weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


@pytest.mark.parametrize(
    ("limit", "nesterov", "threads"),
    [(1, True, 1), (2 * 24 * 24, True, 2), (1 << 22, True, 1), (1 << 22, False, 2)],
)
def test_it_is_pytorchs_muon(
    monkeypatch: pytest.MonkeyPatch, limit: int, nesterov: bool, threads: int
) -> None:
    monkeypatch.setattr(muon, "STACKED_ELEMENTS", limit)
    monkeypatch.setattr(muon, "orthogonalization_dtype", lambda device: torch.bfloat16)
    ours, theirs = make_weights(), make_weights()
    settings: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    one: Optimizer = StackedMuon(ours, **settings, nesterov=nesterov)
    other: Optimizer = Muon(theirs, **settings, nesterov=nesterov, adjust_lr_fn="match_rms_adamw")
    for number in (1, 2, 3):
        for weights in (ours, theirs):
            for weight, gradient in zip(weights, make_weights(number), strict=True):
                weight.grad = gradient.detach()
        if number == 2:  # a matrix without a gradient stays where it is
            ours[3].grad = theirs[3].grad = None
        with torch_threads(threads):
            one.step()
        other.step()
        assert all(map(torch.equal, ours, theirs))
    assert not any(map(torch.equal, ours, make_weights()))


def test_on_a_cpu_it_is_pytorchs_muon_without_bfloat16s_rounding() -> None:
    ours, theirs = make_weights(), make_weights()
    settings: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    for weights in (ours, theirs):
        for weight, gradient in zip(weights, make_weights(1), strict=True):
            weight.grad = gradient.detach()
    one: Optimizer = StackedMuon(ours, **settings)
    other: Optimizer = Muon(theirs, **settings, adjust_lr_fn="match_rms_adamw")
    one.step()
    other.step()
    for found, expected, start in zip(ours, theirs, make_weights(), strict=True):
        apart = (found - expected).norm() / (expected - start).norm()
        assert 1e-4 < apart < 0.05


def test_a_cpu_orthogonalizes_in_float32_and_a_gpu_in_bfloat16() -> None:
    """Without instructions for bfloat16 a CPU takes 30 times as long in it."""
    assert muon.orthogonalization_dtype(torch.device("cpu")) is torch.float32
    assert muon.orthogonalization_dtype(torch.device("cuda")) is torch.bfloat16


def test_autocast_in_which_lightning_takes_steps_changes_nothing() -> None:
    """It would multiply in bfloat16 all the same."""
    plain, cast = make_weights(), make_weights()
    for weights, is_enabled in ((plain, False), (cast, True)):
        for weight, gradient in zip(weights, make_weights(1), strict=True):
            weight.grad = gradient.detach()
        with torch.autocast("cpu", torch.bfloat16, is_enabled):
            StackedMuon(weights, lr=0.02).step()
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


def test_the_state_is_in_the_weights_order() -> None:
    """Stacks of other shapes take longer, in threads of their own."""
    weights = make_weights()
    for weight in weights[1:]:
        weight.grad = torch.ones_like(weight)
    optimizer = StackedMuon(weights)
    optimizer.step()
    assert list(optimizer.state_dict()["state"]) == list(range(1, len(weights)))


def test_stacks_are_of_one_shape_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights()
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    weights[0].grad = None

    def found() -> list[list[int]]:
        at = {weight: number for number, weight in enumerate(weights)}
        return [[at[weight] for weight in stack] for stack in stacks(weights)]

    assert found() == [[1, 4], [2, 5], [3, 6], [7]]
    monkeypatch.setattr(muon, "STACKED_ELEMENTS", 2 * 24 * 24)
    assert found() == [[1], [4], [2], [5], [3, 6], [7]]


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 40, 12), (2, 12, 40)])
def test_singular_values_become_about_one_and_vectors_stay(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalized(matrices.bfloat16(), COEFFICIENTS, 5, 1e-7).float()
    values = torch.linalg.svdvals(found)
    assert values.max() < 1.3
    assert values.median() > 0.6
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    rotated = left.mT @ found @ right.mT
    off = rotated - torch.diag_embed(rotated.diagonal(dim1=1, dim2=2))
    assert off.norm() < 0.15 * rotated.norm()
