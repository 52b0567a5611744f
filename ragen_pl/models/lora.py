"""Low-rank adapters on a frozen base (LoRA, arXiv 2106.09685).

Policy, critic and reference each have their own adapters on one base: their modules share its
frozen weights, tensor by tensor, so adapters are never switched on and off.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from peft.tuners._buffer_dict import BufferDict
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.distributed.sharding import has_hooks
from ragen_pl.models.kernels.adapted_linear import adapted_linear
from ragen_pl.models.seeded_init import seeded_init

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class LoRA:
    """The size of the adapters.

    There is no dropout: its random masks would change the importance ratio.

    Args:
        rank: Rank of each adapter's two matrices.
        alpha: Scale of an adapter's output, which is multiplied by alpha / rank.
        target_modules: Names of the linear layers with adapters; null means all but the vocabulary
            projection.
    """

    rank: int = 16
    alpha: int = 32
    target_modules: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for key in ("rank", "alpha"):
            if getattr(self, key) < 1:
                raise ValueError(f"lora.{key} is {getattr(self, key)}; it must be at least 1")
        if self.target_modules is not None and not self.target_modules:
            raise ValueError("lora.target_modules is empty; name layers, or set it to null for all")

    def attach(self, model: PreTrainedModel, seed: int) -> PeftModel:
        """Freeze the model and add adapters to it, in place; initially they have no effect.

        Args:
            model: The base model.
            seed: Seed of the adapters' first matrices; the second ones are zero.

        Raises:
            ValueError: when no layer has one of the names.
        """
        names = self.target_modules
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=0.0,
            target_modules="all-linear" if names is None else list(names),
            task_type=TaskType.CAUSAL_LM,
        )
        with seeded_init(seed, "meta" if model.device.type == "meta" else "cpu"):
            try:
                adapted = get_peft_model(model, config)
            except ValueError as error:
                raise ValueError(
                    f"lora.target_modules is {names}, but no layer of the policy has such a name: "
                    f"{str(error).splitlines()[0]}"
                ) from error
        assert isinstance(adapted, PeftModel)
        for layer in adapted.modules():
            if type(layer) is LoraLinear and is_plain_adapter_part(layer):
                layer.__class__ = FusedLoraLinear
        return adapted


@dataclass(frozen=True, slots=True)
class AdapterMatrices:
    """The matrices of one adapter."""

    down: Tensor
    """(rank, in)."""
    up: Tensor
    """(out, rank)."""
    scaling: float
    """Factor of their product."""


class FusedLoraLinear(LoraLinear):
    """The library's layer, in fewer passes over memory; in 16 bits, where these would round
    otherwise, as the library computes it."""

    def forward(self, x: Tensor, *args: Any, **more: Any) -> Tensor:
        """Map rows (…, in) to (…, out)."""
        parts = None if args or more else self._fused_parts(x)
        if parts is None:
            return super().forward(x, *args, **more)  # type: ignore[no-any-return]
        base, adapter = parts
        down, up = adapter.down, adapter.up
        return adapted_linear(x, base.weight, base.bias, down, up, adapter.scaling)

    def _fused_parts(self, x: Tensor) -> tuple[nn.Linear, AdapterMatrices] | None:
        """Return base and adapter if the function computes what the library would, for rows in the
        type of all weights, and no hook waits for a module inside the layer."""
        if x.dtype.itemsize < 4 or x.device.type == "meta":
            return None
        if torch.is_autocast_enabled(x.device.type) or not is_plain_adapter_part(self):
            return None
        base, adapter = _parts(self)
        types = {x.dtype, base.weight.dtype, adapter.down.dtype, adapter.up.dtype}
        is_frozen = not any(weight.requires_grad for weight in base.parameters())
        if not is_frozen or len(types) > 1 or any(map(has_hooks, self.children())):
            return None
        return base, adapter


def split_adapter(layer: nn.Module) -> tuple[nn.Linear, AdapterMatrices | None]:
    """Return a linear layer's base and, if it has one, its adapter, without gradients."""
    if not isinstance(layer, LoraLinear):
        assert isinstance(layer, nn.Linear), f"no linear layer: {type(layer).__name__}"
        return layer, None
    base, adapter = _parts(layer)
    return base, replace(adapter, down=adapter.down.detach(), up=adapter.up.detach())


def _parts(layer: LoraLinear) -> tuple[nn.Linear, AdapterMatrices]:
    """Return the base and the adapter of a layer that has one."""
    base = layer.get_base_layer()
    assert isinstance(base, nn.Linear)
    (name,) = layer.active_adapters
    down, up = layer.lora_A[name], layer.lora_B[name]
    assert isinstance(down, nn.Linear)
    assert isinstance(up, nn.Linear)
    return base, AdapterMatrices(down.weight, up.weight, layer.scaling[name])


def is_plain_adapter_part(part: nn.Module) -> bool:
    """Return whether a module is a linear layer's adapter that adds a product of two matrices and
    does no more, or a container within one."""
    if not isinstance(part, LoraLinear):
        return type(part) in (nn.ModuleDict, nn.ParameterDict, nn.Identity, BufferDict)
    names = [name for name in part.active_adapters if name in part.lora_A]
    return (
        type(part) in (LoraLinear, FusedLoraLinear)
        and type(part.get_base_layer()) is nn.Linear
        and len(names) == len(part.active_adapters) == 1
        and not part.merged
        and not part.disable_adapters
        and not part.lora_variant
        and isinstance(part.lora_dropout[names[0]], nn.Identity)
        and part.lora_B[names[0]].bias is None
    )


def base_dtypes(model: nn.Module) -> set[torch.dtype]:
    """Return the types of all weights but those of adapters, which have a type of their own."""
    return {weight.dtype for name, weight in model.named_parameters() if not _is_adapter(name)}


def _is_adapter(name: str) -> bool:
    """Return whether a weight of this name is an adapter's."""
    return ".lora_" in name


def copy_sharing_frozen(module: M) -> M:
    """Copy a module, except for frozen weights, which the copy shares."""
    frozen = {id(weight): weight for weight in module.parameters() if not weight.requires_grad}
    return copy.deepcopy(module, frozen)


def merged_weights(
    model: nn.Module, weights: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of the plain model with adapters merged, one by one, because all merged
    weights at once would be a second model in memory.

    The model is not changed, because merging in place and back would round its weights.

    Args:
        model: The model, with or without adapters.
        weights: Full state of the model, if the model itself holds only a shard.
    """
    weights = model.state_dict() if weights is None else weights
    adapted: dict[str, Any] = {
        f"{name}.weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLayer)
    }
    for name, weight in weights.items():
        if _is_adapter(name):
            continue
        plain = name.replace(".base_layer.", ".")
        if plain in adapted:
            layer: Any = _with_weights(
                adapted[plain], weights, name.removesuffix("base_layer.weight")
            )
            delta = layer.get_delta_weight(layer.active_adapters[0])
            weight = (weight.float() + delta.float()).to(weight)
        yield plain, weight


def _with_weights(layer: M, weights: Mapping[str, Tensor], prefix: str) -> M:
    """Return a copy of a layer that uses the tensors in ``weights``, without copying them."""
    given = {
        id(own): nn.Parameter(weights[prefix + name], requires_grad=False)
        for name, own in layer.named_parameters()
    }
    return copy.deepcopy(layer, given)  # type: ignore[arg-type]  # a memo
