"""Matrices of hidden layers are told from embeddings and output layers by their modules."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedConfig

from ragen_pl.models.lora import LoRA
from ragen_pl.models.matrices import hidden_matrices
from ragen_pl.models.policy import Critic, Policy

LLAMA = LlamaConfig(
    vocab_size=20,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    attention_bias=True,
    tie_word_embeddings=False,
)
GPT2 = GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=16)  # tied, Conv1D
PROJECTIONS = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "gpt2": ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"),
}


def build(config: PreTrainedConfig) -> nn.Module:
    with torch.random.fork_rng():
        model: nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        return model


def names(network: nn.Module, weights: Iterable[nn.Parameter]) -> set[str]:
    found = {id(weight) for weight in weights}
    return {name for name, weight in network.named_parameters() if id(weight) in found}


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_projections_are_matrices_and_nothing_else_is(config: PreTrainedConfig) -> None:
    model = build(config)
    projections = tuple(f"{name}.weight" for name in PROJECTIONS[config.model_type])
    for network in (Policy(model, with_values=True), Critic.like(model)):  # type: ignore[arg-type]
        found = names(network, hidden_matrices(network))
        every = {name for name, _ in network.named_parameters()}
        assert found == {name for name in every if name.endswith(projections)}
        assert len(found) == 2 * len(projections)


@pytest.mark.parametrize("targets", [None, ("q_proj", "lm_head")], ids=["default", "head"])
def test_adapters_are_matrices_but_for_those_of_the_vocabulary_projection(
    targets: tuple[str, ...] | None,
) -> None:
    model = build(LLAMA)
    LoRA(rank=2, target_modules=targets).attach(model, seed=0)  # type: ignore[arg-type]
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    found = names(model, hidden_matrices(model)) & trained
    assert found == {name for name in trained if "lm_head" not in name}
    assert len(found) == 2 * 2 * (7 if targets is None else 1)
    assert (found == trained) == (targets is None)
