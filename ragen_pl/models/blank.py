"""Make a model's modules without its weights, and give them memory."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ragen_pl.models.language import drop_dropout


def blank_model(config: PreTrainedConfig, dtype: str) -> PreTrainedModel:
    """Make a model of this configuration on the meta device, without dropout."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers' own, in their next major
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))  # type: ignore[no-untyped-call]
    drop_dropout(model)
    return cast(PreTrainedModel, model)


def with_depth(config: PreTrainedConfig, layers: int | None) -> PreTrainedConfig:
    """Return a copy for a model of so many layers, whose kinds go on as they do; None for its own
    number."""
    changed = copy.deepcopy(config)
    if layers is not None:
        text = changed.get_text_config()
        kinds = getattr(text, "layer_types", None)
        text.num_hidden_layers = layers
        if kinds is not None:
            text.layer_types = [kinds[layer % len(kinds)] for layer in range(layers)]
    return changed


def allocate(networks: Iterable[nn.Module]) -> None:
    """Move what lies on the meta device to the CPU, in place, without writing to it: memory that
    nobody writes to costs nothing. Weights that several modules share stay shared."""
    blank: dict[Tensor, nn.Parameter] = {}
    for part in nn.ModuleList(networks).modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                if weight not in blank:
                    blank[weight] = nn.Parameter(_empty(weight), weight.requires_grad)
                part._parameters[name] = blank[weight]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = _empty(buffer)


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)
