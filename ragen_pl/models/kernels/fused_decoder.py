"""Read tokens with a Llama's weights in fewer, larger operations than its modules take.

A step of decoding a small model is bound by what surrounds its products: modules that call modules,
three maps where one would do, types changed and changed back. This computes the same numbers
without that, for a sampler, which takes no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import Cache, PreTrainedModel

from ragen_pl.models.kernels.attention import NAME, attend
from ragen_pl.models.kernels.fused_linear import FusedLinear, as_columns
from ragen_pl.models.kernels.last_layer import GatherLastLayer
from ragen_pl.models.kernels.rms_norm import FusedRMSNorm, normalize

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Whose layers are a norm, attention with rotated queries and keys, a norm, and a gated map."""


def supports_fused_decoding(model: PreTrainedModel) -> bool:
    """Say whether a model is one that ``FusedDecoder`` computes: of a known family, whole, in
    float32, each part what the family puts there, and nobody listening."""
    windows = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    return (
        type(model).__name__ in [f"{family}ForCausalLM" for family in _FAMILIES]
        and model.config._attn_implementation == NAME
        and not windows
        and (model.config.model_type != "mistral" or model.config.sliding_window is None)
        # A shard is a tensor of another kind.
        and all(type(w.data) is Tensor and w.dtype == torch.float32 for w in model.parameters())
        and all(map(_is_plain, model.modules()))
        and not has_hooks(model)
    )


def has_hooks(model: nn.Module) -> bool:
    """Say whether hooks run within a model's forward."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def _is_plain(part: nn.Module) -> bool:
    known = (nn.Linear, nn.Embedding, nn.ModuleList, FusedRMSNorm)
    if type(part) in known or isinstance(part, GatherLastLayer):
        return True
    kind = type(part)  # the stack, its layers, their activation; norms must have been quickened
    return kind.__module__.startswith("transformers.") and not kind.__name__.endswith("Norm")


class _Layer:
    """Hold what a layer computes with."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.first_norm: FusedRMSNorm = layer.input_layernorm
        self.query_key_value = FusedLinear.of(
            [attention.q_proj, attention.k_proj, attention.v_proj], dtype
        )
        self.query_norm: nn.Module | None = getattr(attention, "q_norm", None)
        self.key_norm: nn.Module | None = getattr(attention, "k_norm", None)
        self.scaling: float = attention.scaling
        self.out = FusedLinear.of([attention.o_proj], dtype)
        self.second_norm: FusedRMSNorm = layer.post_attention_layernorm
        self.gate_up = FusedLinear.of([mlp.gate_proj, mlp.up_proj], dtype)
        self.activate: nn.Module = mlp.act_fn
        self.down = FusedLinear.of([mlp.down_proj], dtype)

    def mlp(self, x: Tensor) -> Tensor:
        """Return the gated map of normalized rows (…, d)."""
        if self.gate_up.prefers_columns(x) and self.down.prefers_columns(x):
            gate, up = self.gate_up.columns(as_columns(x)).chunk(2)
            return self.down.columns(self.activate(gate).mul_(up)).t().view(x.shape)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activate(gate).mul_(up))


class _Rotation:
    """Hold the cosines and sines by which heads are rotated at each position, beside each other;
    the sines' first half negated, since what they are multiplied with are the halves exchanged.

    They are looked up; where angles depend on the longest position of a block they are made anew.
    """

    def __init__(self, rotary: Any, max_context: int, device: torch.device) -> None:
        self.rotary, self.device = rotary, device
        is_fixed = "dynamic" not in rotary.rope_type and rotary.rope_type != "longrope"
        places = torch.arange(max_context, device=device)
        self.table = self._at(places[None])[0] if is_fixed else None

    def _at(self, positions: Tensor) -> Tensor:
        like = torch.zeros(0, dtype=torch.float32, device=self.device)
        cos, sin = self.rotary(like, positions)
        first, second = sin.chunk(2, dim=-1)
        return torch.cat([cos, -first, second], dim=-1)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each (n, Q, 1, D)."""
        at = self._at(positions) if self.table is None else embedding(positions, self.table)
        cos, sin = at[:, :, None].chunk(2, dim=-1)
        return cos, sin


class FusedDecoder:
    """Compute next-token logits as a model would, rounding what it rounds.

    Args:
        model: One that ``supports_fused_decoding``. Weights may be copied: when they change, make
            another.
        dtype: Of the products.
        max_context: Upper bound of a row's length.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, max_context: int) -> None:
        assert supports_fused_decoding(model), f"not a model this computes: {type(model).__name__}"
        stack: Any = model.model
        self.dtype, self.device = dtype, model.device.type
        self.embedding: Tensor = stack.embed_tokens.weight
        self.norm: FusedRMSNorm = stack.norm
        self.head = FusedLinear.of([model.lm_head], dtype)  # type: ignore[list-item]
        self.heads = model.config.num_attention_heads
        self.rotated = self.heads + model.config.num_key_value_heads
        self.head_width: int = stack.layers[0].self_attn.head_dim
        self.rotation = _Rotation(stack.rotary_emb, max_context, model.device)
        self.layers = [_Layer(layer, dtype) for layer in stack.layers]

    @torch.no_grad()
    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Return (n, V) float32 logits of what follows a block of tokens.

        Args:
            ids: (n, Q).
            positions: (n, Q).
            mask: (n, 1, Q, S), added to scores.
            cache: Takes the block's keys and values.
        """
        with torch.autocast(self.device, enabled=False):  # all is in its type already
            x = embedding(ids, self.embedding)
            rotation = self.rotation(positions)
            for place, layer in enumerate(self.layers):
                states = self._normalized(x, layer.first_norm)
                query, key, value = self._heads(layer, states, *rotation)
                keys, values = cache.update(key, value, place)
                if layer is self.layers[-1]:  # what follows is asked for, and nothing else of it
                    x, query, mask = x[:, -1:], query[:, :, -1:], mask[:, :, -1:]
                x.add_(layer.out(attend(query, keys, values, mask, None).flatten(2)))
                x.add_(layer.mlp(self._normalized(x, layer.second_norm)))
            return self.head(self._normalized(x[:, 0], self.norm)).contiguous().float()

    def _heads(
        self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, rotated and scaled, rotated keys, and values, each (n, heads, Q, D)."""
        heads = layer.query_key_value(x).contiguous()
        heads = heads.view(*x.shape[:2], -1, self.head_width)
        rotated, value = heads[:, :, : self.rotated], heads[:, :, self.rotated :]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = rotated[:, :, : self.heads], rotated[:, :, self.heads :]
            rotated = torch.cat([layer.query_norm(query), layer.key_norm(key)], dim=2)
        first, second = rotated.chunk(2, dim=-1)
        rotated = (rotated * cos).addcmul_(torch.cat([second, first], dim=-1), sin)
        rotated[:, :, : self.heads].mul_(layer.scaling)
        rotated = rotated.to(self.dtype).transpose(1, 2)
        return rotated[:, : self.heads], rotated[:, self.heads :], value.transpose(1, 2)

    def _normalized(self, x: Tensor, norm: FusedRMSNorm) -> Tensor:
        return normalize(x, norm.weight, norm.eps, self.dtype)[0]
