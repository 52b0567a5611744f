"""Adapters on a frozen base that is sharded with them, whatever their dtypes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ragen_pl.distributed.sharding import full_tensor, shard, summon_full_params
from ragen_pl.models import PretrainedModel
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.export import ADAPTER, export_policy
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Policy
from ragen_pl.models.trainable import TrainableModel
from tests.support.templates import save_model

IDS = torch.arange(30, 42)[None]
HERE = torch.ones_like(IDS, dtype=torch.bool)
SAMPLED = (torch.arange(12) > 3)[None]
BASES = ("float32", "bfloat16")
GATHERED = pytest.mark.parametrize("gather_dtype", [None, torch.bfloat16], ids=str)


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """Make a process group of one rank, and its mesh."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=BASES)
def adapted(request: Any, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """Make a model with adapters that are not zero, on a base of each dtype."""
    policy = PretrainedModel(str(save_model(tmp_path_factory.mktemp("base"))), dtype=request.param)
    language = TrainableModel(policy, LoRA(rank=4, alpha=8), True, 0).build(())
    generator = torch.Generator().manual_seed(5)
    for weight in language.model.parameters():
        if weight.requires_grad:
            nn.init.normal_(weight, std=0.05, generator=generator)
    return language


def learn(policy: Policy, gather_dtype: torch.dtype | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Return log-probs and the gradients of the trained weights."""
    policy.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=gather_dtype is not None):
        scores = policy(IDS, SAMPLED, HERE)
        (scores.log_probs.sum() + scores.values.sum()).backward()
    found = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    return scores.log_probs.detach(), {name: full_tensor(grad) for name, grad in found.items()}


@GATHERED
def test_only_adapters_and_head_learn_and_as_without_shards(
    adapted: LanguageModel, mesh: DeviceMesh, gather_dtype: torch.dtype | None
) -> None:
    plain = Policy(copy.deepcopy(adapted.model), with_values=True)
    policy = copy.deepcopy(plain)
    shard(policy, mesh, gather_dtype)
    (ours, gradients), (theirs, expected) = (learn(each, gather_dtype) for each in (policy, plain))
    # Under bf16-mixed embeddings and norms are rounded, which autocast leaves in float32.
    near = 1e-6 if gather_dtype is None else 0.1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=near)
    assert gradients.keys() == expected.keys()
    assert all("lora_" in name or "value_head" in name for name in gradients)
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert gradients[name].dtype == torch.float32
        torch.testing.assert_close(gradients[name], value, rtol=0, atol=near * largest)


@GATHERED
def test_the_sampler_sees_the_adapters(
    adapted: LanguageModel, mesh: DeviceMesh, gather_dtype: torch.dtype | None
) -> None:
    policy = Policy(copy.deepcopy(adapted.model))
    shard(policy, mesh, gather_dtype)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=gather_dtype is not None)
    with torch.no_grad(), autocast:
        trained = policy(IDS, SAMPLED, HERE).log_probs
        with summon_full_params(policy):
            logits = policy.model(input_ids=IDS).logits
    log_p = torch.log_softmax(logits.float(), -1)[0, :-1].gather(-1, IDS[0, 1:, None])[:, 0]
    sampled = SAMPLED[0, 1:]
    torch.testing.assert_close(trained[0, 1:][sampled], log_p[sampled], rtol=0, atol=0.1)


@GATHERED
def test_an_export_is_the_one_of_a_process_that_holds_all(
    adapted: LanguageModel, mesh: DeviceMesh, gather_dtype: torch.dtype | None, tmp_path: Path
) -> None:
    export_policy(adapted, tmp_path / "plain")
    sharded = copy.deepcopy(adapted)
    shard(Policy(sharded.model), mesh, gather_dtype)
    export_policy(sharded, tmp_path / "sharded")
    for file in ("model.safetensors", f"{ADAPTER}/adapter_model.safetensors"):
        ours, theirs = (load_file(tmp_path / name / file) for name in ("sharded", "plain"))
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.equal(ours[name], value)
            assert ours[name].dtype == value.dtype
