"""Train matrices of many shapes with Muon, here or as one of the ranks that shard them: ``python -m
tests.support.muon_job FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from ragen_pl.algorithms.optimization import Muon, Optimization
from ragen_pl.distributed.collectives import rank
from ragen_pl.distributed.sharding import (
    full_state_dict,
    full_tensor,
    load_full_optimizer_state,
    shard,
)
from ragen_pl.training.optimizers import build_optimizer
from ragen_pl.training.update import clip_and_step

SHAPES = ((8, 8), (16, 6), (6, 16), (5, 7), (1, 4), (3, 1), (64, 96))
"""(in, out) of linear layers: wide and tall, of odd and of fewer rows than ranks."""
CONFIG = Optimization(weight_decay=0.1, muon=Muon())
STEPS = 3


def train(mesh: DeviceMesh | None = None, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Take steps on given gradients; return weights and optimizer state as one process has them.

    Args:
        mesh: Mesh of the ranks; None in one process.
        state: What an earlier training returned, to go on from.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(*(nn.Linear(*shape) for shape in SHAPES))
    if state is not None:
        network.load_state_dict(state["weights"])
    if mesh is not None:
        shard(network, mesh)
    optimizer = build_optimizer({"policy": network}, CONFIG)
    if state is not None:
        load_full_optimizer_state(state["optimizer"], optimizer)
    for number in range(STEPS):
        for position, weight in enumerate(network.parameters()):
            generator = torch.Generator().manual_seed(100 * number + position)
            gradient = torch.randn(weight.shape, generator=generator)
            if mesh is not None:
                assert isinstance(weight, DTensor)
                gradient = distribute_tensor(gradient, mesh, weight.placements)
            weight.grad = gradient
        clip_and_step(cast(LightningOptimizer, optimizer), {"policy": 0.01}, 1e9)
    return {
        "weights": full_state_dict(network),
        "optimizer": tree_map_only(Tensor, full_tensor, optimizer.state_dict()),
    }


def main(folder: Path) -> None:
    """Train as one of two ranks, from the start and from what one process saved."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {"start": train(mesh), "resumed": train(mesh, torch.load(folder / "alone.pt"))}
    if rank() == 0:
        torch.save(found, folder / "together.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
