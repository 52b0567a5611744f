"""What a plan depends on: the model, the algorithm, the sizes of a rollout, the processes."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedConfig

from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.distributed.fsdp import Replicas, num_replicas
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.micro_batching import rows_within


@dataclass(frozen=True)
class Cluster:
    """The number of processes, one per device, and whether they shard the networks.

    Args:
        devices: Devices per node.
        num_nodes: Nodes.
        sharded: Whether weights, gradients and optimizer moments are divided among all processes
            (FSDP); otherwise each process has its own.
        replicas: Copies of the shards, each divided among as many processes (HSDP).
    """

    devices: int = 1
    num_nodes: int = 1
    sharded: bool = False
    replicas: Replicas = 1

    def __post_init__(self) -> None:
        for key in ("devices", "num_nodes"):
            if getattr(self, key) < 1:
                raise ValueError(f"trainer.{key} is {getattr(self, key)}; it must be at least 1")

    @property
    def processes(self) -> int:
        return self.devices * self.num_nodes

    @property
    def shards(self) -> int:
        """Number of processes among which a copy of the networks is divided."""
        if not self.sharded:
            return 1
        return self.processes // num_replicas(self.replicas, self.num_nodes, self.processes)


@dataclass(frozen=True)
class PlanInput:
    """The configuration of the planned run.

    Args:
        architecture: Architecture of the language model, as a configuration of transformers.
        trainable: The model's dtype, adapters and gradient checkpointing.
        algorithm: Algorithm, which decides whether there are a critic and a reference.
        optimization: Sizes of micro-batches.
        rollout: Sizes of a rollout.
        bf16: Whether the trainer computes in bfloat16 (``bf16-mixed``).
        hindsight: Whether the policy's own solutions are imitated in hindsight.
        device: Kind of the device, ``cpu`` or any other.
        cuda_graphs: Whether decode steps are captured where they can be.
        evaluation_context: Maximum tokens of a trajectory on the evaluation sets; 0 if none needs
            more than a rollout.
    """

    architecture: PreTrainedConfig
    trainable: TrainableModel
    algorithm: Algorithm
    optimization: Optimization
    rollout: RolloutConfig
    bf16: bool = True
    hindsight: bool = False
    device: str = "gpu"
    cuda_graphs: bool = True
    evaluation_context: int = 0

    @property
    def longest_context(self) -> int:
        """Maximum tokens of a trajectory, in training and in evaluations."""
        return max(self.rollout.max_context, self.evaluation_context)

    @property
    def cache_context(self) -> int:
        """Tokens of a trajectory that the KV cache of a rollout has room for: on a GPU, where it
        has its full length from the beginning, as many as evaluations need."""
        return self.rollout.max_context if self.device == "cpu" else self.longest_context

    @property
    def trajectories(self) -> int:
        """Trajectories of one rollout, over all processes."""
        return self.rollout.num_groups * self.rollout.online_k * self.rollout.group_size

    @property
    def can_be_sharded(self) -> bool:
        """Whether ``fsdp`` accepts the run: it refuses adapters of several networks on one base."""
        return self.trainable.lora is None or self.algorithm.is_single_network

    @property
    def sequences(self) -> int:
        """Largest number of training sequences of a trajectory."""
        return self.rollout.memory.max_sequences(self.rollout.max_turns)

    def captures_steps(self, cluster: Cluster) -> bool:
        """Return whether decode steps are captured: not on CPUs, nor by a sharded model."""
        return self.cuda_graphs and self.device != "cpu" and not cluster.sharded

    def rows(self, cluster: Cluster) -> int:
        """Return the number of trajectories that one process samples; groups are not split."""
        groups = -(-self.rollout.num_groups * self.rollout.online_k // cluster.processes)
        return groups * self.rollout.group_size

    @property
    def sampled_tokens(self) -> int:
        """Largest number of sampled tokens of a training sequence; all other tokens come from the
        environment and the chat template."""
        rollout = self.rollout
        return min(rollout.max_context - 1, rollout.max_turns * rollout.max_response_tokens)

    @property
    def micro_batch_rows(self) -> int:
        """Number of training sequences of the maximum length that fit a micro-batch."""
        budget = self.optimization.tokens_per_micro_batch
        return min(
            rows_within(budget, self.rollout.max_context), self.trajectories * self.sequences
        )
