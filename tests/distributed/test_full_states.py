"""Full states of sharded networks are gathered and loaded as those of a single process."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from ragen_pl.distributed.sharding import (
    full_state_dict,
    load_full_optimizer_state,
    load_full_state,
    shard,
)


class Tied(nn.Module):
    """An embedding tied to its head, a frozen layer, and a layer that is rarely trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 3), nn.Linear(3, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen, self.rare = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((2,), 3.0))

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(self.frozen(self.embedding(ids)))
        return output


@pytest.fixture(scope="module", params=["alone", "sharded"])
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh | None]:
    """Make a mesh of one rank; none without a process group."""
    if request.param == "alone":
        yield None
        return
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def make(mesh: DeviceMesh | None) -> tuple[Tied, torch.optim.Optimizer]:
    """Make networks of equal weights, and an optimizer without state."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Tied()
    if mesh is not None:
        shard(network, mesh)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    return network, torch.optim.AdamW(trained, lr=0.1, fused=True)


def step(network: Tied, optimizer: torch.optim.Optimizer) -> None:
    """Train the tied weights alone."""
    network(torch.arange(6)[None]).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_tied_weights_are_one_and_frozen_ones_can_be_left_out(mesh: DeviceMesh | None) -> None:
    network, _ = make(mesh)
    state, expected = full_state_dict(network), Tied().state_dict()
    assert list(state) == list(expected)
    assert not any(isinstance(value, DTensor) for value in state.values())
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()
    trainable = full_state_dict(network, trainable_only=True)
    assert trainable.keys() == {name for name in expected if not name.startswith("frozen")}


def test_values_are_loaded_in_place_and_absent_ones_stay(mesh: DeviceMesh | None) -> None:
    network, _ = make(mesh)
    weights = dict(network.named_parameters())
    frozen = full_state_dict(network)["frozen.weight"].clone()
    values = {
        name: torch.randn_like(value)
        for name, value in full_state_dict(network, trainable_only=True).items()
    }
    values["head.weight"] = values["embedding.weight"]
    load_full_state(network, {"rare.weight": values.pop("rare.weight").T.contiguous().T, **values})
    found = full_state_dict(network)
    assert torch.equal(found.pop("frozen.weight"), frozen)
    assert all(torch.equal(found[name], value) for name, value in values.items())
    assert all(weight is weights[name] for name, weight in network.named_parameters())


def test_moments_are_loaded_and_missing_ones_stay_missing(mesh: DeviceMesh | None) -> None:
    """A moment of zeros with a step count of one would change the next update."""
    alone, optimizer = make(None)
    for _ in range(2):
        step(alone, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    network, other = make(mesh)
    load_full_state(network, alone.state_dict())
    load_full_optimizer_state(copy.deepcopy(saved), other)
    assert len(other.state) == len(saved["state"]) == 1
    (moments,) = other.state.values()
    assert isinstance(moments["exp_avg"], DTensor) == (mesh is not None)
    for _ in range(2):
        step(alone, optimizer)
        step(network, other)
    for name, value in full_state_dict(network).items():
        assert torch.equal(value, alone.state_dict()[name])
