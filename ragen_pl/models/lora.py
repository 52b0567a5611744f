"""Train low-rank adapters on a frozen base (LoRA, arXiv 2106.09685).

Policy, critic and reference each have adapters of their own on one base: their modules share its
frozen weights, tensor by tensor, so that nothing has to be switched on and off.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.models.seeded_init import seeded_init

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class LoRA:
    """Size the adapters.

    There is no dropout: the importance ratio compares one function with itself.

    Args:
        rank: Of each adapter's two matrices.
        alpha: Scales an adapter's output, by alpha / rank.
        target_modules: Names of the linear layers that get one; null means all but the vocabulary
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
        """Freeze the model and put adapters into it, in place; they change nothing at first.

        Args:
            seed: Of the adapters' first matrices; the second ones are zero.

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
                    f"lora.target_modules is {names}, but the policy's layers are not called so: "
                    f"{str(error).splitlines()[0]}"
                ) from error
        assert isinstance(adapted, PeftModel)
        return adapted


def copy_sharing_frozen(module: M) -> M:
    """Copy a module; weights that are not trained are shared with the copy."""
    frozen = {id(weight): weight for weight in module.parameters() if not weight.requires_grad}
    return copy.deepcopy(module, frozen)


def merged_weights(
    model: nn.Module, weights: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of the plain model that adapters and base make together, one by one:
    all merged weights at once would be a second model.

    The model itself is left alone: merging in place and back would round its weights.

    Args:
        model: Names the layers that have adapters.
        weights: Its whole state, where the model holds a shard of it.
    """
    weights = model.state_dict() if weights is None else weights
    adapted: dict[str, Any] = {
        f"{name}.weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLayer)
    }
    for name, weight in weights.items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        if plain in adapted:
            layer: Any = _holding(adapted[plain], weights, name.removesuffix("base_layer.weight"))
            delta = layer.get_delta_weight(layer.active_adapters[0])
            weight = (weight.float() + delta.float()).to(weight)
        yield plain, weight


def _holding(layer: M, weights: Mapping[str, Tensor], prefix: str) -> M:
    """Copy a layer with the weights that bear its names, which are not copied."""
    given = {
        id(own): nn.Parameter(weights[prefix + name], requires_grad=False)
        for name, own in layer.named_parameters()
    }
    return copy.deepcopy(layer, given)  # type: ignore[arg-type]  # a memo
