"""The last layer, computed after attention only at the scored positions.

Attention mixes tokens. The rest of a layer, the larger part, is computed for each token by itself,
and for prompts and observations its result is never used: only positions before sampled tokens are
scored.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.distributed.sharding import has_hooks
from ragen_pl.models.kernels.attention import causal_mask
from ragen_pl.models.kernels.rms_norm import LLAMA_FAMILY
from ragen_pl.models.kernels.rotary import has_fixed_angles


class GatherLastLayer(nn.Module):
    """A mixin for layers of Llama's kind: norm, attention, norm, MLP."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """Return the states (n, d) at some positions (n,) of the flattened rows (B, T, d), or, if
        ``positions`` is None, all states (B, T, d), as the layer itself does."""
        if positions is None:
            return cast(Tensor, super().forward(hidden_states, attention_mask, **more))
        parts: Any = self
        attended, _ = parts.self_attn(
            hidden_states=parts.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            positions=positions,  # unused; equal calls share compiled code
            **more,
        )
        states = (hidden_states + attended).flatten(0, 1).index_select(0, positions)
        return cast(Tensor, states + parts.mlp(parts.post_attention_layernorm(states)))


@cache
def _with_gather(kind: type[nn.Module]) -> type[nn.Module]:
    # With the same name, by which transformers and others find a model's layers.
    return type(kind.__name__, (GatherLastLayer, kind), {})


def enable_gather(model: PreTrainedModel) -> bool:
    """Let a model's last layer compute only given positions, in place; return whether it can.

    It can in models of a known family. Weights keep their names.
    """
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
    last.__class__ = _with_gather(kind)  # type: ignore[arg-type]  # a class is hashable
    return True


def is_known_and_unwrapped(backbone: nn.Module, network: nn.Module) -> bool:
    """Return whether a backbone may run several times in one pass of its network, also at once.

    It is of a known family, whose layers change nothing while they run, its rotary angles do not
    depend on the longest position of a pass, and no module is wrapped:
    hooks that gather shards must run equally often on every rank, and in one order; layers that are
    checkpointed or compiled keep what a single pass has.
    """
    layers: Any = getattr(backbone, "layers", ())
    return (
        bool(layers)
        and has_fixed_angles(getattr(backbone, "rotary_emb", None))
        and isinstance(layers[-1], GatherLastLayer)
        and not getattr(layers[-1], "gradient_checkpointing", False)
        and not has_hooks(network)
        and not any("forward" in vars(part) for part in network.modules())
    )


def states_at(backbone: nn.Module, input_ids: Tensor, padding: Tensor, positions: Tensor) -> Tensor:
    """Return a backbone's last hidden states (n, d) at some positions, in one forward.

    Args:
        backbone: A model without its head.
        input_ids: (B, T) token ids.
        padding: (B, T) bool, true on real tokens.
        positions: (n,), indices into the flattened rows.
    """
    inputs = {
        "input_ids": input_ids,
        "attention_mask": causal_mask(padding),
        "position_ids": torch.arange(input_ids.shape[1], device=positions.device).expand_as(
            input_ids
        ),
        "use_cache": False,
        "mask_is_causal": True,
    }
    layers: Any = getattr(backbone, "layers", ())
    if layers and isinstance(layers[-1], GatherLastLayer):
        return cast(Tensor, backbone(positions=positions, **inputs).last_hidden_state)
    states: Tensor = backbone(**inputs).last_hidden_state
    return states.flatten(0, 1).index_select(0, positions)
