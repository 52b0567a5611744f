"""The Lightning strategy for weights that are sharded over all ranks (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer

from ragen_pl.distributed.checkpoint_io import WRITE_FAILURE, make_parent_on_all
from ragen_pl.distributed.sharded_checkpoint import load_sharded
from ragen_pl.distributed.sharding import frozen_base_weights, materialize, shard
from ragen_pl.errors import ConfigError

FSDP_NAME = "fsdp"
"""The strategy's name in ``trainer.strategy``."""
FSDP_MEANS = (
    "trainer.strategy fsdp: FSDP2, through Lightning's ModelParallelStrategy; policy, critic and "
    "reference are sharded over"
)
"""Beginning of the line that says what the name stands for here."""


Replicas = int | Literal["nodes"]
"""Number of copies of the shards; ``nodes``: one on each node."""

ONE_NETWORK = (
    "but there are several networks, whose adapters share one frozen base, of which FSDP2 would "
    "keep a copy for each: use one network (a critic's backbone: shared, or no critic with "
    "--config grpo.yaml, and model.algorithm.kl: null), or set trainer.strategy to ddp, under "
    "which every device has the base once, or model.lora to null"
)
"""End of the message that refuses adapters: the reason and the alternatives."""


class FSDP2(ModelParallelStrategy):
    """FSDP2: weights, gradients and optimizer moments sharded over all ranks, or over some (HSDP).

    With ``replicas`` a copy of the networks is sharded over as many ranks as there are for each,
    consecutive ones: ``nodes`` keeps the gathering of weights within a node, and lets nodes
    exchange sums of gradients alone, once in an optimizer step.

    Lightning's defaults for ``ModelParallelStrategy`` would shard over nodes only and split every
    layer over the devices of a node (tensor parallelism).

    Args:
        save_distributed_checkpoint: Whether a checkpoint is a folder to which every rank writes its
            shards; otherwise the first rank gathers it into a file, as a run without sharding
            writes it. A run can be resumed from either, on any number of ranks.
        process_group_backend: Backend of torch.distributed; null for the device's default.
        timeout_minutes: Minutes after which a collective that waits for a missing rank is an error.
        replicas: Number of copies of the shards, a divisor of the number of ranks; ``nodes`` for
            one on each node. A rank holds ``replicas`` times as much as with 1.

    Raises:
        ConfigError: for fewer than one copy.
    """

    def __init__(
        self,
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout_minutes: float = 30.0,
        replicas: Replicas = 1,
    ) -> None:
        if replicas != "nodes" and replicas < 1:
            raise ConfigError(
                f"trainer.strategy.replicas is {replicas}; it must be at least 1, or nodes"
            )
        self.replicas = replicas
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timedelta(minutes=timeout_minutes),
        )

    def setup_environment(self) -> None:
        """Set the size of the mesh to the number of ranks, which is known only now."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def meaning(self, ranks: int) -> str:
        """Return a line that says what is sharded over which ranks.

        Args:
            ranks: Number of all ranks.

        Raises:
            ConfigError: when they cannot be divided among the copies.
        """
        copies = num_replicas(self.replicas, self.num_nodes, ranks)
        if copies == 1:
            return f"{FSDP_MEANS} all ranks"
        return f"{FSDP_MEANS} {ranks // copies} ranks, in {copies} copies (HSDP)"

    def shard_networks(self, networks: Iterable[nn.Module | None], precision: str) -> None:
        """Shard networks in place, each as a unit of its own; None is skipped.

        Args:
            networks: Policy, critic and reference.
            precision: ``trainer.precision``; under bf16-mixed weights are gathered in bfloat16.
        """
        existing = [network for network in networks if network is not None]
        materialize(existing)
        gather_dtype = torch.bfloat16 if precision == "bf16-mixed" else None
        mesh = self._mesh_of_shards()
        for network in existing:
            shard(network, mesh, gather_dtype)

    def _mesh_of_shards(self) -> DeviceMesh:
        """Return the mesh of all ranks: of one dimension, or copies by shards (HSDP)."""
        assert self.device_mesh is not None
        copies = num_replicas(self.replicas, self.num_nodes, self.world_size)
        if copies == 1:
            return self.device_mesh["data_parallel"]
        return init_device_mesh(
            self.device_mesh.device_type,
            (copies, self.world_size // copies),
            mesh_dim_names=("replicas", "shards"),
        )

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Save as Lightning does, but let no rank wait for one whose disk is full, or which cannot
        write there at all."""
        with WRITE_FAILURE.guard():
            make_parent_on_all(Path(self.broadcast(filepath)))
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return an optimizer's state as Lightning does, but leave one that has taken no step as it
        is: PyTorch fills an empty state by a step, and the first one of training would then be
        corrected for its moments' bias as the second."""
        own = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        is_new = not own.state
        state: dict[str, Any] = super().optimizer_state(optimizer)
        if is_new:
            own.state.clear()
            state |= {"state": {}}
        return state

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load weights and moments in place, and return everything else in the checkpoint.

        A frozen base is not in the checkpoint, because the model was already built with it.
        """
        module: Any = self.lightning_module
        path = Path(self.broadcast(checkpoint_path))
        base = frozen_base_weights(module, module.policy)
        return load_sharded(path, module, self.optimizers, base, weights_only)


def num_replicas(replicas: Replicas, num_nodes: int, ranks: int) -> int:
    """Return the number of copies of the shards.

    Raises:
        ConfigError: when the ranks cannot be divided among them.
    """
    copies = num_nodes if replicas == "nodes" else replicas
    if ranks % copies:
        raise ConfigError(
            f"trainer.strategy.replicas is {replicas}, but {ranks} ranks (devices times num_nodes) "
            f"cannot be divided among {copies}: use a divisor of {ranks}, or nodes"
        )
    return copies


def check_strategy(kind: type[Strategy], *, share_a_base: bool) -> None:
    """Check that a strategy trains the networks as configured.

    Args:
        kind: Class of the trainer's strategy.
        share_a_base: Whether several networks have adapters on one frozen base.

    Raises:
        ValueError: for FSDP1, for tensor parallelism, and under ``fsdp`` for adapters of several
            networks on one base.
    """
    if issubclass(kind, FSDPStrategy):
        raise ValueError(
            f"trainer.strategy is {kind.__name__}, which is FSDP1; it cannot unshard a policy for "
            f"rollouts: set trainer.strategy to {FSDP_NAME}, which is FSDP2 here"
        )
    if issubclass(kind, ModelParallelStrategy) and not issubclass(kind, FSDP2):
        raise ValueError(
            f"trainer.strategy is {kind.__name__}, which by default splits layers over the devices "
            f"of a node: set trainer.strategy to {FSDP_NAME}, which shards over all ranks"
        )
    if issubclass(kind, FSDP2) and share_a_base:
        raise ValueError(f"trainer.strategy is {FSDP_NAME} and model.lora is set, {ONE_NETWORK}")
