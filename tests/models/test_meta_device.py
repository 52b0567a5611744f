"""A model without weights equals the real one in everything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen2Config

from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.distributed.sharding import materialize
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.lora import LoRA
from ragen_pl.models.meta_device import with_depth
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.training.networks import Networks
from tests.support.templates import ARCHITECTURES, save_model

SMALL = EmbeddedModel(hidden_size=16, intermediate_size=16, num_heads=2, num_key_value_heads=1)


def shapes(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, object]:
    return {name: (tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors}


def check_alike(trainable: TrainableModel) -> None:
    real, blank = (trainable.build(["go"], with_weights=held) for held in (True, False))
    assert all(weight.is_meta for weight in blank.model.parameters())
    assert shapes(blank.model.named_parameters()) == shapes(real.model.named_parameters())
    assert shapes(blank.model.named_buffers()) == shapes(real.model.named_buffers())
    assert blank.tokenizer.get_vocab() == real.tokenizer.get_vocab()
    assert (blank.markers, blank.context_limit) == (real.markers, real.context_limit)
    assert blank.model.training == real.model.training
    assert blank.model.config._attn_implementation == real.model.config._attn_implementation
    assert (blank.adapted is None) == (real.adapted is None)
    modules = [type(part) for part in real.model.modules()]
    assert [type(part) for part in blank.model.modules()] == modules


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)])
def test_an_embedded_model_without_weights(lora: LoRA | None) -> None:
    check_alike(TrainableModel(SMALL, lora, False, 0))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_pretrained_model_without_weights(architecture: str, tmp_path: Path) -> None:
    policy = PretrainedModel(str(save_model(tmp_path, architecture)), dtype="bfloat16")
    check_alike(TrainableModel(policy, LoRA(rank=2), True, 0))


@pytest.mark.parametrize("backbone", ["separate", "shared"])
def test_memory_is_allocated_once_and_shared_weights_stay_shared(backbone: str) -> None:
    advantage = GAE(critic=CriticConfig(backbone=backbone))  # type: ignore[arg-type]
    trainable = TrainableModel(SMALL, LoRA(rank=2), False, 0)
    with torch.device("meta"):
        model = trainable.build(["go"], with_weights=False).model
        networks = Networks.of(model, Algorithm(advantage, kl=KLPenalty(0.1)))
    there = [network for network in networks if network is not None]
    before = sum(weight.numel() for weight in nn.ModuleList(there).parameters())
    materialize(there)
    after = list(nn.ModuleList(there).parameters())
    assert sum(weight.numel() for weight in after) == before
    assert not any(weight.is_meta for weight in after)
    assert not any(buffer.is_meta for each in there for buffer in each.buffers())
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert head.weight is model.get_input_embeddings().weight
    assert networks.reference is not None
    shared = networks.reference.model.get_input_embeddings().weight
    assert shared is model.get_input_embeddings().weight


def test_another_depth_repeats_the_types_of_layers() -> None:
    """A plan measures more layers than the smallest models have."""
    kinds = ["sliding_attention", "full_attention"]
    config = Qwen2Config(num_hidden_layers=2, layer_types=kinds)
    for depth in (1, 2, 5):
        other = with_depth(config, depth)
        assert (other.num_hidden_layers, len(other.layer_types)) == (depth, depth)
        assert other.layer_types == (kinds * 3)[:depth]
    assert with_depth(config, None).layer_types == config.layer_types == kinds


def test_weights_with_data_keep_it() -> None:
    model = SMALL.build(["go"], 0).model
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    materialize([model])
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
