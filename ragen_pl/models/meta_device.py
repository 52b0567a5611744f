"""Models on the meta device: modules without weights."""

from __future__ import annotations

import copy
import warnings
from typing import cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ragen_pl.models.base import drop_dropout


def build_on_meta(config: PreTrainedConfig, dtype: str) -> PreTrainedModel:
    """Build a model of this configuration on the meta device, without dropout."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # raised within transformers
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))  # type: ignore[no-untyped-call]
    drop_dropout(model)
    return cast(PreTrainedModel, model)


def with_depth(config: PreTrainedConfig, layers: int | None) -> PreTrainedConfig:
    """Return a copy of a configuration with another number of layers, whose types repeat in the
    original order; None keeps the number."""
    changed = copy.deepcopy(config)
    if layers is not None:
        text = changed.get_text_config()
        kinds = getattr(text, "layer_types", None)
        text.num_hidden_layers = layers
        if kinds is not None:
            text.layer_types = [kinds[layer % len(kinds)] for layer in range(layers)]
    return changed
