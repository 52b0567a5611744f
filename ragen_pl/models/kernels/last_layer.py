"""Let a model's last layer go on with those tokens alone whose states are asked for.

Attention is where tokens look at each other. What the last layer does behind it, the larger part of
a layer, it does for each token by itself, and for prompts and observations nobody looks at the
outcome: only what precedes a sampled token is scored.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.models.kernels.attention import causal_mask
from ragen_pl.models.kernels.rms_norm import LLAMA_FAMILY


class GatherLastLayer(nn.Module):
    """Mix into a layer of Llama's kind: attention behind a norm, a map behind another."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        asked: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """Return states (n, d) of the asked places (n,) of all rows (B, T, d), laid end to end;
        without any, those of all, (B, T, d), as the layer itself does."""
        if asked is None:
            return cast(Tensor, super().forward(hidden_states, attention_mask, **more))
        parts: Any = self
        attended, _ = parts.self_attn(
            hidden_states=parts.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            asked=asked,  # unused, but compiled code is shared by those that call alike
            **more,
        )
        states = (hidden_states + attended).flatten(0, 1).index_select(0, asked)
        return cast(Tensor, states + parts.mlp(parts.post_attention_layernorm(states)))


@cache
def _asked(kind: type[nn.Module]) -> type[nn.Module]:
    # Under its own name, by which transformers and others find a model's layers.
    return type(kind.__name__, (GatherLastLayer, kind), {})


def enable_gather(model: PreTrainedModel) -> bool:
    """Make the last layer of a model one that can be asked, in place, if it is of a known family;
    return whether it is. Weights keep their names."""
    kinds = {f"{family}DecoderLayer" for family in LLAMA_FAMILY}
    layers = getattr(model.base_model, "layers", ())
    if not layers:
        return False
    last: nn.Module = layers[-1]
    if isinstance(last, GatherLastLayer):
        return True
    kind = type(last)
    if kind.__name__ not in kinds or not kind.__module__.startswith("transformers."):
        return False
    last.__class__ = _asked(kind)  # type: ignore[arg-type]  # a class is hashable
    return True


def states_at(backbone: nn.Module, input_ids: Tensor, padding: Tensor, places: Tensor) -> Tensor:
    """Read rows at once; return a backbone's last hidden states (n, d) at some places.

    Args:
        backbone: What is under a model's head.
        input_ids: (B, T).
        padding: (B, T) bool, true on real tokens.
        places: (n,), in the rows laid end to end.
    """
    inputs = {
        "input_ids": input_ids,
        "attention_mask": causal_mask(padding),
        "position_ids": torch.arange(input_ids.shape[1], device=places.device).expand_as(input_ids),
        "use_cache": False,
        "is_causal": True,
    }
    layers: Any = getattr(backbone, "layers", ())
    if layers and isinstance(layers[-1], GatherLastLayer):
        return cast(Tensor, backbone(asked=places, **inputs).last_hidden_state)
    whole: Tensor = backbone(**inputs).last_hidden_state
    return whole.flatten(0, 1).index_select(0, places)
