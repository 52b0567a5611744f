"""The networks of a run on tensors without data, and the number of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ragen_pl.cli.plan.inputs import PlanInput
from ragen_pl.distributed.sharding import materialize, transformer_blocks
from ragen_pl.models.matrices import hidden_matrices
from ragen_pl.models.meta_device import build_on_meta, with_depth
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.training.networks import Networks

_MOMENTS = 2
"""Moments of AdamW per weight, in the weight's dtype; Muon keeps one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers of parameters; one that several networks share counts for the first network only."""

    policy: int
    critic: int
    reference: int
    adapters: int
    """Parameters of LoRA adapters, in all networks together."""
    trainable: int
    weight_bytes: int
    gradient_bytes: int
    exported_bytes: int
    """Bytes of the language model as a Hugging Face folder, adapters merged."""

    muon_bytes: int = 0
    """Bytes of the gradients of matrices that Muon trains."""

    hindsight_bytes: int = 0
    """Bytes of the policy's moments for hindsight imitation, which has its own."""

    frozen_base_bytes: int = 0
    """Bytes of the policy's frozen weights, which no checkpoint holds."""

    @property
    def moment_bytes(self) -> int:
        return _MOMENTS * self.gradient_bytes - self.muon_bytes + self.hindsight_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint's weights and moments."""
        return self.weight_bytes - self.frozen_base_bytes + self.moment_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredBytes:
    """Bytes of sharded weights that are gathered at the same time, in the gathered dtype."""

    policy: int
    """The whole policy, as in a rollout."""
    during_pass: int
    """During a pass: the current and the next transformer block, and the policy's other weights."""


@dataclass(frozen=True)
class MetaNetworks:
    """Policy, critic and reference with tensors that have no data."""

    model: PreTrainedModel
    policy: Policy
    critic: Critic | None
    reference: Policy | None

    @classmethod
    def of(cls, plan_input: PlanInput, layers: int | None = None) -> MetaNetworks:
        """Build the networks on the meta device, as ``StarPO.configure_model`` does.

        Args:
            plan_input: The configuration.
            layers: Number of layers; None for the architecture's own.
        """
        trainable = plan_input.trainable
        architecture = with_depth(plan_input.architecture, layers)
        with torch.device("meta"):
            model = build_on_meta(architecture, trainable.policy.dtype)
            trainable.prepare(model)
            return cls(model, *Networks.of(model, plan_input.algorithm))

    def to_fake_cpu(self) -> None:
        """Move every tensor to the CPU, in place; in a ``FakeTensorMode`` none gets data."""
        materialize(self.all)

    @property
    def all(self) -> list[nn.Module]:
        """The networks of this run."""
        return [each for each in (self.policy, self.critic, self.reference) if each is not None]

    @property
    def trained_matrices(self) -> list[nn.Parameter]:
        """The matrices of hidden layers that are trained."""
        return _trained_matrices(nn.ModuleList(self.all))

    def counts(self, *, muon: bool = False, hindsight: bool = False) -> ParameterCounts:
        """Count every parameter once.

        Args:
            muon: Whether Muon trains the matrices.
            hindsight: Whether the policy's own solutions are imitated in hindsight.
        """
        seen: set[int] = set()
        policy, critic, reference = (
            0 if network is None else sum(weight.numel() for weight in _unseen(network, seen))
            for network in (self.policy, self.critic, self.reference)
        )
        weights = list(_unseen(nn.ModuleList(self.all), set()))
        trained = [weight for weight in weights if weight.requires_grad]
        return ParameterCounts(
            policy=policy,
            critic=critic,
            reference=reference,
            adapters=sum(
                weight.numel()
                for network in self.all
                for name, weight in network.named_parameters()
                if ".lora_" in name
            ),
            trainable=sum(weight.numel() for weight in trained),
            weight_bytes=sum(weight.nbytes for weight in weights),
            gradient_bytes=sum(weight.nbytes for weight in trained),
            muon_bytes=sum(weight.nbytes for weight in self.trained_matrices) if muon else 0,
            hindsight_bytes=self._policy_moment_bytes(muon) if hindsight else 0,
            frozen_base_bytes=sum(
                weight.nbytes for weight in self.policy.parameters() if not weight.requires_grad
            ),
            exported_bytes=sum(
                weight.nbytes
                for name, weight in self.policy.model.named_parameters()
                if ".lora_" not in name
            ),
        )

    def _policy_moment_bytes(self, muon: bool) -> int:
        trained = [weight for weight in self.policy.model.parameters() if weight.requires_grad]
        with_one = _trained_matrices(self.policy.model) if muon else []
        single = sum(weight.nbytes for weight in with_one)
        return _MOMENTS * sum(weight.nbytes for weight in trained) - single

    def gathered_bytes(self, bf16: bool) -> GatheredBytes:
        """Count gathered weights; under ``bf16-mixed`` no dtype is wider than bfloat16."""
        widest = torch.bfloat16.itemsize if bf16 else torch.float64.itemsize

        def size(weights: Iterable[Tensor]) -> int:
            return sum(weight.numel() * min(weight.itemsize, widest) for weight in weights)

        blocks = transformer_blocks(self.policy)
        in_blocks = {id(weight) for block in blocks for weight in block.parameters()}
        others = [weight for weight in self.policy.parameters() if id(weight) not in in_blocks]
        return GatheredBytes(
            policy=size(self.policy.parameters()),
            during_pass=size(others) + 2 * max(size(block.parameters()) for block in blocks),
        )


def _trained_matrices(network: nn.Module) -> list[nn.Parameter]:
    found = dict.fromkeys(hidden_matrices(network))
    return [weight for weight in found if weight.requires_grad]


def num_layers(architecture: PreTrainedConfig) -> int:
    """Return the number of layers."""
    layers: int = architecture.get_text_config().num_hidden_layers
    return layers


def _unseen(network: nn.Module, seen: set[int]) -> Iterator[nn.Parameter]:
    for weight in network.parameters():
        if id(weight) not in seen:
            seen.add(id(weight))
            yield weight
