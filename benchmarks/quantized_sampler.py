"""An engine that is wrong on purpose: it samples from a coarse copy of the policy's weights.

Engines such as vLLM sample in another number type or with other kernels than the trainer's, so the
tokens are not quite the policy's. ``InProcess`` agrees with the trainer; this engine does not, by a
known amount, to see what that does and what truncated importance sampling (``algorithm.tis_cap``)
mends:

``--model.engine "{class_path: benchmarks.quantized_sampler.Quantized, init_args: {bits: 4}}"``

The sampler reports the log-probs of the coarse policy, from which it sampled, as any engine does.
Evaluations play the coarse policy too, since the engine plays everywhere.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.models.base import LanguageModel
from ragen_pl.rollout.engines import InProcess
from ragen_pl.rollout.engines.base import Autocast
from ragen_pl.rollout.engines.in_process import InProcessSampler


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Round each row of a matrix to ``2^bits − 1`` evenly spaced values around 0; vectors stay."""
    if weight.ndim < 2:
        return weight
    steps = 2 ** (bits - 1) - 1
    scale: Tensor = weight.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / steps
    return torch.round(weight / scale) * scale


class QuantizedSampler(InProcessSampler):
    """A sampler of a copy of the model, whose matrices are rounded at every ``reset``.

    Args:
        source: The policy's model, which is not changed.
        bits: Bits of a weight.
        arguments: The other arguments of ``InProcessSampler``.
    """

    def __init__(self, source: PreTrainedModel, bits: int, **arguments: Any) -> None:
        super().__init__(copy.deepcopy(source).requires_grad_(False), **arguments)
        self.model.train(mode=False)
        self.source, self.bits = source, bits

    @torch.no_grad()
    def reset(self) -> None:
        """Take the policy's weights and round them."""
        super().reset()
        for own, its in zip(self.model.parameters(), self.source.parameters(), strict=True):
            own.copy_(rounded(its, self.bits))


@dataclass(frozen=True)
class Quantized(InProcess):
    """Sampling from the policy with rounded weights.

    Args:
        cuda_graphs: As in ``InProcess``; false only.
        bits: Bits of a weight, at least 2; 8 is nearly the policy itself.
    """

    bits: int = 4

    def __post_init__(self) -> None:
        if self.bits < 2:
            raise ValueError(f"model.engine.bits is {self.bits}; it must be at least 2")
        if self.cuda_graphs:
            raise ValueError(
                "model.engine.cuda_graphs is true, but Quantized changes weights that a graph "
                "would keep: set it to false"
            )

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> QuantizedSampler:
        """Build the sampler."""
        return QuantizedSampler(
            language.model,
            self.bits,
            stop_id=language.markers.end,
            seed=seed,
            max_context=max_context,
            autocast=autocast,
        )
