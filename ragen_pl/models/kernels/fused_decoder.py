"""The forward of Llama-like models in fewer, larger operations, for sampling without gradients.

A decode step of a small model is bound by the overhead around its matrix products: nested module
calls, three linear layers where one is enough, casts back and forth. The decoder here computes the
same numbers without that overhead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import Cache, PreTrainedModel

from ragen_pl.distributed.sharding import has_hooks
from ragen_pl.models.kernels.attention import NAME, attend
from ragen_pl.models.kernels.fused_linear import FusedLinear, alike, as_columns
from ragen_pl.models.kernels.last_layer import GatherLastLayer
from ragen_pl.models.kernels.rms_norm import FusedRMSNorm, rms_norm
from ragen_pl.models.kernels.rotary import RotaryTable
from ragen_pl.models.lora import base_dtypes, is_plain_adapter_part

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Families whose layers are a norm, attention with rotary embeddings, a norm, and a gated MLP."""


def supports_fused_decoding(model: PreTrainedModel, dtype: torch.dtype) -> bool:
    """Return whether ``FusedDecoder`` supports a model with products in ``dtype``: it must be an
    unsharded model of a supported family, unmodified or with plain adapters, without forward
    hooks, with weights in float32 or, but for the adapters, in ``dtype``."""
    windows = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    return (
        type(model).__name__ in [f"{family}ForCausalLM" for family in _FAMILIES]
        and model.config._attn_implementation == NAME
        and not windows
        and (model.config.model_type != "mistral" or model.config.sliding_window is None)
        and all(type(weight.data) is Tensor for weight in model.parameters())  # none is sharded
        and base_dtypes(model) in ({torch.float32}, {dtype})
        and all(map(_is_plain, model.modules()))
        and all(map(alike, _fused_layers(model)))
        and not has_hooks(model)
    )


def _is_plain(part: nn.Module) -> bool:
    known = (nn.Linear, nn.Embedding, nn.ModuleList, FusedRMSNorm)
    if type(part) in known or isinstance(part, GatherLastLayer) or is_plain_adapter_part(part):
        return True
    kind = type(part)  # backbone, layers, activations; norms must be FusedRMSNorm
    return kind.__module__.startswith("transformers.") and not kind.__name__.endswith("Norm")


def _fused_layers(model: PreTrainedModel) -> Iterator[list[nn.Module]]:
    """Yield the linear layers that are fused, together."""
    stack: Any = model.model
    for layer in stack.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield [attention.q_proj, attention.k_proj, attention.v_proj]
        yield [mlp.gate_proj, mlp.up_proj]


class _Layer:
    """The weights and modules of one layer, fused."""

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
        """Apply the gated MLP to normalized rows (…, d)."""
        if self.gate_up.prefers_columns(x) and self.down.prefers_columns(x):
            gate, up = self.gate_up.columns(as_columns(x)).chunk(2)
            return self.down.columns(self.activate(gate).mul_(up)).t().view(x.shape)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activate(gate).mul_(up))


class FusedDecoder:
    """A function from a block of tokens to next-token logits, with the model's own rounding.

    Args:
        model: A model that ``supports_fused_decoding`` accepts. Weights may be copied: build
            another decoder after they change.
        dtype: Type of the products.
        max_context: Upper bound of a row's length.
        value_head: A head of values on the same states, if they are wanted, too.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        max_context: int,
        value_head: nn.Module | None = None,
    ) -> None:
        is_supported = supports_fused_decoding(model, dtype)
        assert is_supported, f"an unsupported model: {type(model).__name__}"
        stack: Any = model.model
        self.dtype, self.device = dtype, model.device.type
        self.embedding: Tensor = stack.embed_tokens.weight
        self.norm: FusedRMSNorm = stack.norm
        self.head = FusedLinear.of([model.lm_head], dtype)  # type: ignore[list-item]
        self.value_head = value_head
        self.heads = model.config.num_attention_heads
        self.rotated = self.heads + model.config.num_key_value_heads
        self.head_width: int = stack.layers[0].self_attn.head_dim
        held = self.embedding.dtype
        self.rotation = RotaryTable(stack.rotary_emb, max_context, model.device, held)
        self.layers = [_Layer(layer, dtype) for layer in stack.layers]

    @property
    def changes_angles(self) -> bool:
        """Whether a call may change the angles of another one that runs at the same time."""
        return self.rotation.table is None

    @torch.no_grad()
    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Return the (n, V) float32 logits after a block of tokens, or (n, V + 1), the value behind
        them.

        Args:
            ids: (n, Q) token ids.
            positions: (n, Q) position ids.
            mask: (n, 1, Q, S) additive mask.
            cache: Cache to which the block's keys and values are written.
        """
        with torch.autocast(self.device, enabled=False):  # tensors already have their types
            x = embedding(ids, self.embedding)
            rotation = self.rotation(positions)
            for index, layer in enumerate(self.layers):
                states = self._normalized(x, layer.first_norm)
                query, key, value = self._heads(layer, states, *rotation)
                keys, values = cache.update(key, value, index)
                if layer is self.layers[-1]:  # only the last token's logits are returned
                    x, query, mask = x[:, -1:], query[:, :, -1:], mask[:, :, -1:]
                x.add_(layer.out(attend(query, keys, values, mask, None).flatten(2)))
                x.add_(layer.mlp(self._normalized(x, layer.second_norm)))
            states = self._normalized(x[:, 0], self.norm)
            logits = self.head(states).contiguous().float()
            if self.value_head is None:
                return logits
            # As the trainer does, which casts this product, too.
            is_low = self.dtype != torch.float32
            with torch.autocast(self.device, self.dtype, enabled=is_low):
                return with_value(logits, self.value_head(states))

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
        # The model rounds both products before it adds them. A fused sum rounds once, which in bf16
        # changed the log-probs of 135M parameters by 0.03 nats.
        rotated = (rotated * cos).add_(torch.cat([second, first], dim=-1) * sin)
        rotated[:, :, : self.heads].mul_(layer.scaling)
        rotated = rotated.to(self.dtype).transpose(1, 2)
        return rotated[:, : self.heads], rotated[:, self.heads :], value.transpose(1, 2)

    def _normalized(self, x: Tensor, norm: FusedRMSNorm) -> Tensor:
        if x.dtype != torch.float32:
            return norm(x)  # type: ignore[no-any-return]
        return rms_norm(x, norm.weight, norm.eps, self.dtype)


def with_value(logits: Tensor, values: Tensor) -> Tensor:
    """Return logits (n, V) with the values (n,) as a last column, in the logits' type."""
    return torch.cat([logits, values[:, None].to(logits.dtype)], dim=1)
