"""Compilation of a network's transformer blocks with torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from ragen_pl.distributed.sharding import transformer_blocks


def mark_compiles_as_whole(layer: nn.Module) -> None:
    """Mark a layer that is compiled as one graph, attention included."""
    for part in layer.modules():
        part.compiles_as_whole = True  # type: ignore[assignment]


def compiles_as_whole(module: nn.Module) -> bool:
    """Return whether a module, such as attention, is part of a layer compiled as one graph."""
    return getattr(module, "compiles_as_whole", False)


def compile_layers(network: nn.Module) -> None:
    """Let torch.compile fuse the operations between each layer's matrix products, in place.

    Compiled code is shared by all lengths and by all layers but the last, which may be computed at
    some positions only. Only the body of ``forward`` is compiled; hooks, such as those that gather
    a layer's shards, run outside it. A layer with gradient checkpointing is compiled with its
    recomputation, which is possible only as one graph.
    """
    for layer in transformer_blocks(network):
        if getattr(layer, "gradient_checkpointing", False):
            mark_compiles_as_whole(layer)
        layer.forward = torch.compile(layer.forward, dynamic=True)  # type: ignore[method-assign]


@contextmanager
def eager_layers(network: nn.Module) -> Iterator[None]:
    """Run compiled layers eagerly, for sampling, which reads one token at a time with a cache."""
    is_compiled = any("forward" in vars(part) for part in network.modules())
    # Setting a stance loads the compiler.
    with torch.compiler.set_stance("force_eager") if is_compiled else nullcontext():
        yield
