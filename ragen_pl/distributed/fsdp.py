"""Lightning's strategy for weights that are sharded over all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ragen_pl.distributed.sharded_checkpoint import load_sharded
from ragen_pl.distributed.sharding import frozen_base_weights, materialize, shard

FSDP_NAME = "fsdp"
"""What ``trainer.strategy`` calls it."""
FSDP_MEANS = (
    "trainer.strategy fsdp: FSDP2, through Lightning's ModelParallelStrategy; policy, critic and "
    "reference are sharded over all ranks"
)


ONE_NETWORK = (
    "but there are several networks, whose adapters share one frozen base, which FSDP2 would have "
    "to keep for each: have one network (a critic's backbone: shared, or no critic with --config "
    "grpo.yaml, and model.algorithm.kl: null), or set trainer.strategy to ddp, under which every "
    "device holds that base once, or model.lora to null"
)
"""Why adapters are refused, and the ways out."""


class FSDP2(ModelParallelStrategy):
    """Shard weights, gradients and the optimizer's state over all ranks.

    Lightning's own defaults would shard over nodes only and split every layer within a node.

    Args:
        save_distributed_checkpoint: Whether a checkpoint is a folder to which every rank writes its
            shard; else the first rank gathers it into a file, as of a run that is not sharded.
            Either can be resumed from, on any number of ranks.
        process_group_backend: Of torch.distributed; null for the device's own.
        timeout_minutes: After which a rank that waits for the others in vain is an error.
    """

    def __init__(
        self,
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout_minutes: float = 30.0,
    ) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timedelta(minutes=timeout_minutes),
        )

    def setup_environment(self) -> None:
        """Settle the sizes as soon as the number of ranks is known."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load weights and moments in place, of a folder or a file, and return what else it holds;
        a frozen base is in neither."""
        module: Any = self.lightning_module
        path = Path(self.broadcast(checkpoint_path))
        base = frozen_base_weights(module, module.policy)
        return load_sharded(path, module, self.optimizers, base, weights_only)


def check_strategy(strategy: Strategy, *, share_a_base: bool) -> None:
    """Refuse what would not train what it says, and say what ``fsdp`` is.

    Args:
        strategy: The trainer's.
        share_a_base: Whether several networks have adapters on one frozen base.

    Raises:
        ValueError: for FSDP1, for layers split over devices, for a base that would be sharded with
            one of its networks only.
    """
    name = type(strategy).__name__
    if isinstance(strategy, FSDPStrategy):
        raise ValueError(
            f"trainer.strategy is {name}, which is FSDP1; it cannot unshard a policy for rollouts: "
            f"set trainer.strategy to {FSDP_NAME}, which is FSDP2 here"
        )
    if isinstance(strategy, ModelParallelStrategy) and not isinstance(strategy, FSDP2):
        raise ValueError(
            f"trainer.strategy is {name}, which splits layers over the devices of a node unless it "
            f"is told their number: set trainer.strategy to {FSDP_NAME}, which shards over all"
        )
    if isinstance(strategy, FSDP2):
        if share_a_base:
            raise ValueError(
                f"trainer.strategy is {FSDP_NAME} and model.lora is set, {ONE_NETWORK}"
            )
        if strategy.is_global_zero:
            print(FSDP_MEANS)


def shard_networks(networks: Iterable[nn.Module | None], mesh: DeviceMesh, precision: str) -> None:
    """Shard those that there are.

    Args:
        networks: Each a unit of its own.
        mesh: Of the ranks, as Lightning makes it.
        precision: ``trainer.precision``; under bf16-mixed weights are gathered in bfloat16.
    """
    there = [network for network in networks if network is not None]
    materialize(there)
    gather_in = torch.bfloat16 if precision == "bf16-mixed" else None
    for network in there:
        shard(network, mesh["data_parallel"], gather_in)
