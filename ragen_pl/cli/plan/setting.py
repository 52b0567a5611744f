"""Say what is planned: the model, what is done with it, and over how many processes."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedConfig

from ragen_pl.algorithms.config import Algorithm, Optimization
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.packing import rows_within


@dataclass(frozen=True)
class Cluster:
    """Count the processes, one per device, and say what they share.

    Args:
        devices: Per node.
        num_nodes: Nodes.
        sharded: Whether weights, gradients and optimizer states are divided among all processes
            (FSDP); otherwise each has its own.
    """

    devices: int = 1
    num_nodes: int = 1
    sharded: bool = False

    def __post_init__(self) -> None:
        for key in ("devices", "num_nodes"):
            if getattr(self, key) < 1:
                raise ValueError(f"trainer.{key} is {getattr(self, key)}; it must be at least 1")

    @property
    def processes(self) -> int:
        return self.devices * self.num_nodes


@dataclass(frozen=True)
class PlanInput:
    """Hold everything that a plan depends on.

    Args:
        architecture: The language model's, in transformers' terms.
        trainable: Its type, adapters and checkpointing.
        algorithm: Whether there are a critic and a reference.
        optimization: How batches are cut.
        rollout: How much is collected.
        bf16: Whether the trainer computes in bfloat16 (``bf16-mixed``).
        keep_fraction: Share of the trajectories that the policy learns from.
    """

    architecture: PreTrainedConfig
    trainable: TrainableModel
    algorithm: Algorithm
    optimization: Optimization
    rollout: RolloutConfig
    bf16: bool = True
    keep_fraction: float = 1.0

    @property
    def trajectories(self) -> int:
        """Of one collection, on all processes."""
        return self.rollout.num_groups * self.rollout.online_k * self.rollout.group_size

    @property
    def can_be_sharded(self) -> bool:
        """Whether ``fsdp`` takes it: adapters of several networks share a base, and are refused."""
        return self.trainable.lora is None or self.algorithm.is_single_network

    @property
    def scores_apart(self) -> bool:
        """Whether the policy is scored before its updates."""
        optimization, once = self.optimization, self.rollout.is_on_policy
        own = optimization.reuses_own_log_probs(self.algorithm, once)
        return optimization.old_log_probs == "recomputed" and not own

    def rows(self, cluster: Cluster) -> int:
        """Count the trajectories that a process collects; groups stay whole."""
        groups = -(-self.rollout.num_groups * self.rollout.online_k // cluster.processes)
        return groups * self.rollout.group_size

    @property
    def sampled_tokens(self) -> int:
        """Of a trajectory, at most: the others come from the environment and the template."""
        rollout = self.rollout
        return min(rollout.max_context - 1, rollout.max_turns * rollout.max_response_tokens)

    @property
    def micro_batch_rows(self) -> int:
        """Trajectories of the longest kind in a micro-batch."""
        budget = self.optimization.tokens_per_micro_batch
        return min(rows_within(budget, self.rollout.max_context), self.trajectories)
