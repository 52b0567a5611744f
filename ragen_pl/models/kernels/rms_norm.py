"""Root-mean-square norms with fewer passes over memory.

transformers implements a norm as six operations in float32, whose results autograd keeps, and under
autocast each linear layer after it casts the result again. For a small model that is a large part
of an update: on a CPU for the passes, on a GPU for the launches, where PyTorch has a kernel of its
own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from transformers import PreTrainedModel

LLAMA_FAMILY = ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")
"""Families with the same norm, and with layers of the same structure as Llama's."""
_BEFORE_LINEAR = ("input_layernorm", "post_attention_layernorm")
"""Norms of a layer whose results only linear layers use."""


class _Normalize(torch.autograd.Function):
    """Scaling of rows to a mean square of one, then by a weight; autograd keeps rows and scales."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float, out: torch.dtype
    ) -> Tensor:
        """Return the normalized rows (…, d) in the type ``out``."""
        normalized, scale = normalize(x, weight, eps, out)
        ctx.save_for_backward(x, weight, scale)
        return normalized

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """Return the gradients with respect to rows and weight.

        With y a row, s its scale and g the output's gradient times the weight, the row's gradient
        is s g - s³ (g · y) y / d.
        """
        x, weight, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        width = x.shape[-1]
        rows, scale = x.reshape(-1, width), scale.reshape(-1, 1)
        grad = torch.empty_like(rows).copy_(grad.reshape(-1, width))  # a copy, overwritten below
        with _no_autocast(x.device.type):  # the backward pass may run under autocast
            product = grad * rows
            dot = torch.mv(product, weight)[:, None]
            is_trained = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
            for_weight = torch.mv(product.T, scale[:, 0]) if is_trained else None
        grad.mul_(weight).mul_(scale).addcmul_(rows, dot.mul_(scale**3), value=-1 / width)
        return grad.view(x.shape), for_weight, None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: torch.dtype) -> Tensor:
    """Return the normalized rows (…, d) in the type ``out``."""
    if _has_kernel(x.device.type) and x.dtype == weight.dtype == torch.float32:
        return nn.functional.rms_norm(x, (x.shape[-1],), weight, eps).to(out)
    if torch.is_grad_enabled():
        normalized: Tensor = _Normalize.apply(x, weight, eps, out)  # type: ignore[no-untyped-call]
        return normalized
    return normalize(x, weight, eps, out)[0]


def normalize(x: Tensor, weight: Tensor, eps: float, out: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the normalized rows, and the scale of each."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # One operation for three: on a few rows the overhead of each exceeds its computation.
    scale = torch.addcmul(norm.new_full((1,), eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale).mul_(weight).to(out), scale


def _has_kernel(device: str) -> bool:
    return device == "cuda"


def _has_autocast(device: str) -> bool:
    return device != "meta"  # PyTorch's own query is slower


def _no_autocast(device: str) -> AbstractContextManager[object]:
    return torch.autocast(device, enabled=False) if _has_autocast(device) else nullcontext()


class FusedRMSNorm(nn.Module):
    """A replacement of a model's own norm, with its weight.

    Args:
        weight: (d,), the norm's weight.
        eps: Constant added to the mean square.
        feeds_linear: Whether only linear layers use the result. Under autocast these cast it to the
            type they compute in, so it is returned in that type: the same numbers, cast only once.
    """

    def __init__(self, weight: nn.Parameter, eps: float, feeds_linear: bool) -> None:
        super().__init__()
        self.weight, self.eps, self.feeds_linear = weight, eps, feeds_linear

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the rows of (…, d)."""
        if torch.compiler.is_compiling() or not x.dtype == self.weight.dtype == torch.float32:
            return self._unfused(x)
        out, device = x.dtype, x.device.type
        if self.feeds_linear and _has_autocast(device) and torch.is_autocast_enabled(device):
            out = torch.get_autocast_dtype(device)
        return rms_norm(x, self.weight, self.eps, out)

    def _unfused(self, x: Tensor) -> Tensor:
        """Compute the model's own operations: for compilers, which fuse them, and for 16-bit
        weights, where the order of rounding is part of the model."""
        rows = x.to(torch.float32)
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * rows.to(x.dtype)


def use_fused_rms_norm(model: PreTrainedModel) -> int:
    """Replace the norms of a known family by ``FusedRMSNorm``, in place; return their number.
    Weights keep their names."""
    kinds = {f"{family}RMSNorm" for family in LLAMA_FAMILY}
    layers = {f"{family}DecoderLayer" for family in LLAMA_FAMILY}
    found = 0
    for part in list(model.modules()):
        for name, norm in list(part.named_children()):
            if type(norm).__name__ in kinds:
                before = type(part).__name__ in layers and name in _BEFORE_LINEAR
                eps = norm.variance_epsilon
                setattr(part, name, FusedRMSNorm(norm.weight, eps, before))  # type: ignore[arg-type]
                found += 1
    return found
