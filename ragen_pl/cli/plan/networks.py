"""Build the networks of a run on tensors without data, and count their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ragen_pl.cli.plan.setting import PlanInput
from ragen_pl.distributed.sharding import materialize, transformer_blocks
from ragen_pl.models.meta_device import build_on_meta, with_depth
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.training.networks import Networks

_MOMENTS = 2
"""Of AdamW, in the weights' own type."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Count weights; one that several networks share counts in the first of them."""

    policy: int
    critic: int
    reference: int
    adapters: int
    """Low-rank ones, of all networks."""
    trainable: int
    weight_bytes: int
    policy_bytes: int
    gradient_bytes: int

    @property
    def moment_bytes(self) -> int:
        return _MOMENTS * self.gradient_bytes


@dataclass(frozen=True, slots=True)
class Gathered:
    """Count the bytes of sharded weights that are put together, in the type they are then in."""

    policy: int
    """All of it, as while it plays."""
    networks: int
    """All there are, one after another, as a pass over each does."""
    at_work: int
    """Of a policy during a pass: the layer at work, the next one, and what stands around them."""


@dataclass(frozen=True)
class MetaNetworks:
    """Hold policy, critic and reference, none of whose tensors has data."""

    model: PreTrainedModel
    policy: Policy
    critic: Critic | None
    reference: Policy | None

    @classmethod
    def of(cls, setting: PlanInput, layers: int | None = None) -> MetaNetworks:
        """Build them on the meta device, as ``StarPO.configure_model`` does.

        Args:
            layers: Depth; None for the architecture's own.
        """
        trainable = setting.trainable
        architecture = with_depth(setting.architecture, layers)
        with torch.device("meta"):
            model = build_on_meta(architecture, trainable.policy.dtype)
            trainable.prepare(model)
            return cls(model, *Networks.of(model, setting.algorithm))

    def on_cpu(self) -> None:
        """Move every tensor to the CPU, in place; within a ``FakeTensorMode``, without data."""
        materialize(self.all)

    @property
    def all(self) -> list[nn.Module]:
        return [each for each in (self.policy, self.critic, self.reference) if each is not None]

    def counts(self) -> Counts:
        """Count every weight once."""
        seen: set[int] = set()
        policy, critic, reference = (
            0 if network is None else sum(weight.numel() for weight in _unseen(network, seen))
            for network in (self.policy, self.critic, self.reference)
        )
        weights = list(_unseen(nn.ModuleList(self.all), set()))
        trained = [weight for weight in weights if weight.requires_grad]
        return Counts(
            policy,
            critic,
            reference,
            adapters=sum(
                weight.numel()
                for network in self.all
                for name, weight in network.named_parameters()
                if ".lora_" in name
            ),
            trainable=sum(weight.numel() for weight in trained),
            weight_bytes=_bytes(weights),
            policy_bytes=_bytes(self.policy.parameters()),
            gradient_bytes=_bytes(trained),
        )

    def gathered(self, bf16: bool) -> Gathered:
        """Count what is gathered; under ``bf16-mixed`` no weight is gathered in a wider type."""
        widest = torch.bfloat16.itemsize if bf16 else torch.float64.itemsize

        def gathered_bytes(weights: Iterable[Tensor]) -> int:
            return sum(weight.numel() * min(weight.itemsize, widest) for weight in weights)

        layers = transformer_blocks(self.policy)
        within = {id(weight) for layer in layers for weight in layer.parameters()}
        around = [weight for weight in self.policy.parameters() if id(weight) not in within]
        return Gathered(
            policy=gathered_bytes(self.policy.parameters()),
            networks=gathered_bytes(nn.ModuleList(self.all).parameters()),
            at_work=gathered_bytes(around)
            + 2 * max(gathered_bytes(layer.parameters()) for layer in layers),
        )


def depth(architecture: PreTrainedConfig) -> int:
    """Return the number of layers."""
    layers: int = architecture.get_text_config().num_hidden_layers
    return layers


def _unseen(network: nn.Module, seen: set[int]) -> Iterator[nn.Parameter]:
    for weight in network.parameters():
        if id(weight) not in seen:
            seen.add(id(weight))
            yield weight


def _bytes(weights: Iterable[Tensor]) -> int:
    return sum(weight.nbytes for weight in weights)
