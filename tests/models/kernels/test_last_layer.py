"""A last layer computed at some positions has the states and gradients of the whole layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ragen_pl.models.kernels.attention import NAME, causal_mask
from ragen_pl.models.kernels.last_layer import GatherLastLayer, enable_gather, states_at
from ragen_pl.models.kernels.rms_norm import LLAMA_FAMILY, use_fused_rms_norm
from ragen_pl.models.lora import LoRA
from tests.support.templates import SIZES

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "smollm3"]
POSITIONS = torch.tensor([3, 4, 9, 17, 18, 0])
"""Indices into two flattened rows of ten."""


def make_model(family: str) -> PreTrainedModel:
    torch.manual_seed(3)
    config = CONFIG_MAPPING[family](**{**SIZES, "vocab_size": 64})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation=NAME
    )
    use_fused_rms_norm(model)
    return model


def ask(model: PreTrainedModel, is_bf16: bool = False) -> Tensor:
    ids = torch.arange(20).view(2, 10) % 63 + 1
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        return states_at(model.base_model, ids, torch.ones_like(ids, dtype=torch.bool), POSITIONS)


def learned(model: PreTrainedModel, states: Tensor) -> dict[str, Tensor]:
    (states * torch.arange(states.numel()).view_as(states).sin()).sum().backward()  # type: ignore[no-untyped-call]
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_the_families_are_those_with_layers_like_llamas() -> None:
    assert {family.lower() for family in LLAMA_FAMILY} == set(FAMILIES)


@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_gradients_are_those_of_the_whole_layer(family: str, is_bf16: bool) -> None:
    plain = make_model(family)
    gathered = copy.deepcopy(plain)
    assert enable_gather(gathered)
    assert enable_gather(gathered), "it is one already"
    assert list(gathered.state_dict()) == list(plain.state_dict())
    expected, states = ask(plain, is_bf16), ask(gathered, is_bf16)
    tolerance = 0.02 if is_bf16 else 1e-5
    torch.testing.assert_close(states, expected, atol=tolerance, rtol=tolerance)
    gradients, others = learned(plain, expected), learned(gathered, states)
    assert others.keys() == gradients.keys()
    for name, gradient in gradients.items():
        distance = (others[name] - gradient).norm() / gradient.norm().clamp_min(1e-6)
        assert distance < (0.03 if is_bf16 else 1e-4), name


def test_other_positions_are_not_computed() -> None:
    model = make_model("llama")
    enable_gather(model)
    seen: list[int] = []
    for layer in model.base_model.layers:  # type: ignore[union-attr]
        layer.mlp.register_forward_hook(lambda _, __, out: seen.append(out.numel() // 32))  # type: ignore[union-attr]
    ask(model)
    assert seen == [20, len(POSITIONS)]


def test_without_positions_it_is_the_original_layer() -> None:
    plain = make_model("qwen3")
    gathered = copy.deepcopy(plain)
    enable_gather(gathered)
    ids = torch.arange(12).view(2, 6) + 1
    mask = causal_mask(torch.ones_like(ids))
    said = (model(input_ids=ids, attention_mask=mask).logits for model in (plain, gathered))
    torch.testing.assert_close(*said, atol=0, rtol=0)


def test_gradient_checkpointing_recomputes_it() -> None:
    plain = make_model("llama").train()
    again = copy.deepcopy(plain)
    enable_gather(again)
    again.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
    calls = []
    again.base_model.layers[-1].mlp.register_forward_pre_hook(lambda *_: calls.append(1))  # type: ignore[union-attr,index]
    states = ask(again)
    gradients, others = learned(plain, ask(plain)), learned(again, states)
    assert len(calls) == 2
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, atol=1e-5, rtol=1e-4)


def test_adapters_and_copies_keep_it() -> None:
    model = make_model("llama")
    expected = ask(model)
    enable_gather(model)
    LoRA(rank=2).attach(model, 0)
    for each in (model, copy.deepcopy(model)):
        assert isinstance(each.base_model.layers[-1], GatherLastLayer)  # type: ignore[union-attr,index]
        torch.testing.assert_close(ask(each), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "gpt2"])
def test_other_families_compute_all_positions(family: str) -> None:
    config = CONFIG_MAPPING[family](**{**SIZES, "vocab_size": 64})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.train(False)
    model.set_attn_implementation("eager")  # the default of older versions leaves out Gemma's cap
    kinds = [type(part) for part in model.modules()]
    assert not enable_gather(model)
    assert [type(part) for part in model.modules()] == kinds
    ids = torch.arange(20).view(2, 10) + 1
    whole: nn.Module = model.base_model
    with torch.no_grad():
        expected = whole(input_ids=ids).last_hidden_state.flatten(0, 1)[POSITIONS]
        model.set_attn_implementation(NAME)
        states = states_at(whole, ids, torch.ones_like(ids, dtype=torch.bool), POSITIONS)
    torch.testing.assert_close(states, expected)
