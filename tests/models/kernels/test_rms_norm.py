"""Fused norms have the results and gradients of a model's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ragen_pl.models.kernels import rms_norm as module
from ragen_pl.models.kernels.rms_norm import (
    FusedRMSNorm,
    _Normalize,
    rms_norm,
    use_fused_rms_norm,
)
from tests.support.templates import SIZES

WIDTH = 24


def make_norms() -> tuple[LlamaRMSNorm, FusedRMSNorm]:
    torch.manual_seed(1)
    theirs = LlamaRMSNorm(WIDTH, eps=1e-3)  # type: ignore[no-untyped-call]
    nn.init.normal_(theirs.weight)
    return theirs, FusedRMSNorm(nn.Parameter(theirs.weight.detach().clone()), 1e-3, True)


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(2)
    return (torch.randn(*shape, WIDTH) * 3).to(dtype).requires_grad_()


@pytest.mark.parametrize("shape", [(5,), (2, 7), (2, 3, 4), (0,)], ids=str)
def test_it_equals_the_models_own(shape: tuple[int, ...]) -> None:
    theirs, ours = make_norms()
    x, other = rows(*shape), rows(*shape)
    torch.testing.assert_close(ours(x), theirs(other))
    weights = torch.randn(*shape, WIDTH)
    (ours(x) * weights).sum().backward()
    (theirs(other) * weights).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


def test_a_devices_own_kernel_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of GPUs, on a CPU."""
    found = []
    for has_kernel in (False, True):
        monkeypatch.setattr(module, "_has_kernel", lambda device, known=has_kernel: known)
        x, weight = rows(2, 3), torch.linspace(-1, 2, WIDTH).requires_grad_()
        result = rms_norm(x, weight, 1e-3, torch.bfloat16)
        result.float().pow(2).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():  # 16-bit weights, for which no kernel is taken
            short = rms_norm(x.bfloat16(), weight.bfloat16(), 1e-3, torch.bfloat16)
        found.append((result, x.grad, weight.grad, short))
    torch.testing.assert_close(*found)


def test_gradients_equal_finite_differences() -> None:
    x = rows(4, dtype=torch.float64).detach().requires_grad_()
    weight = torch.randn(WIDTH, dtype=torch.float64, requires_grad=True)

    def normalize(x: Tensor, weight: Tensor) -> Tensor:
        return _Normalize.apply(x, weight, 0.1, torch.float64)  # type: ignore[no-any-return,no-untyped-call]

    assert torch.autograd.gradcheck(normalize, (x, weight))


def test_gradients_are_not_autocast() -> None:
    """Lightning runs the backward pass within the autocast context of the forward pass."""
    _, ours = make_norms()
    ours.feeds_linear = False
    x, other = rows(5), rows(5)
    with torch.autocast("cpu", torch.bfloat16):
        ours(x).sum().backward()
    inside, ours.weight.grad = ours.weight.grad, None
    ours(other).sum().backward()
    assert inside is not None
    torch.testing.assert_close(inside, ours.weight.grad, rtol=0, atol=0)
    torch.testing.assert_close(x.grad, other.grad, rtol=0, atol=0)


def test_a_frozen_weight_gets_no_gradient() -> None:
    theirs, ours = make_norms()
    ours.weight.requires_grad_(False)
    x, other = rows(5), rows(5)
    ours(x).sum().backward()
    theirs(other).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert ours.weight.grad is None


def test_a_row_of_zeros_has_a_gradient() -> None:
    theirs, ours = make_norms()
    x, other = (torch.zeros(2, WIDTH, requires_grad=True) for _ in range(2))
    ours(x).sum().backward()
    theirs(other).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_one_cast_equals_a_cast_per_layer() -> None:
    """Linear layers under autocast give the same results for the cast and the uncast norm."""
    theirs, ours = make_norms()
    maps = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    x = rows(6)
    with torch.autocast("cpu", torch.bfloat16):
        said, expected = ours(x), theirs(x)
        assert (said.dtype, expected.dtype) == (torch.bfloat16, torch.float32)
        # Sums are rounded in another order: now and then the last of 8 bits.
        torch.testing.assert_close(said, expected.bfloat16(), rtol=2**-7, atol=0)
        assert (said == expected.bfloat16()).float().mean() > 0.98
        ours.feeds_linear = False
        assert ours(x).dtype == torch.float32
        for each in maps:
            torch.testing.assert_close(each(said.detach()), each(said.detach().float()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_types_use_the_original_operations(dtype: torch.dtype) -> None:
    theirs, ours = make_norms()
    theirs, ours = theirs.to(dtype), ours.to(dtype)
    x = rows(5, dtype=dtype)
    assert torch.equal(ours(x), theirs(x))


SMALL = {**SIZES, "vocab_size": 64, "initializer_range": 0.02}


def make_model(family: str) -> PreTrainedModel:
    torch.manual_seed(3)
    config = CONFIG_MAPPING[family](**SMALL)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight, mean=1.0, std=0.3)
    return model


def learn(model: PreTrainedModel, is_bf16: bool) -> tuple[Tensor, dict[str, Tensor]]:
    ids = torch.arange(40).remainder(63).add(1).view(4, 10)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        logits = model(input_ids=ids).logits.float()
    torch.log_softmax(logits, -1)[:, :, 5].sum().backward()  # type: ignore[no-untyped-call]
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_families_keep_outputs_and_gradients(family: str, is_bf16: bool) -> None:
    plain = make_model(family)
    quick = copy.deepcopy(plain)
    per_layer = 4 if family == "qwen3" else 2
    assert use_fused_rms_norm(quick) == 2 * per_layer + 1
    assert list(quick.state_dict()) == list(plain.state_dict())
    said, gradients = learn(plain, is_bf16)
    again, others = learn(quick, is_bf16)
    tolerance = 0.02 if is_bf16 else 1e-5
    torch.testing.assert_close(again, said, atol=tolerance, rtol=tolerance)
    assert others.keys() == gradients.keys()
    for name, gradient in gradients.items():
        distance = (others[name] - gradient).norm() / gradient.norm()
        assert distance < tolerance, name


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "gpt2"])
def test_other_families_are_not_changed(family: str) -> None:
    """Gemma adds one to its weights, and a norm before a residual feeds no linear layer."""
    config = CONFIG_MAPPING[family](**SMALL)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    assert use_fused_rms_norm(model) == 0
