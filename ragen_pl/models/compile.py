"""Find the layers that a network is a stack of, and compile them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from ragen_pl.distributed.sharding import transformer_blocks


def keep_whole(layer: nn.Module) -> None:
    """Mark a layer that can be compiled only as a whole, its attention with it."""
    for part in layer.modules():
        part.compiles_as_whole = True  # type: ignore[assignment]


def compiles_as_whole(module: nn.Module) -> bool:
    """Say whether a part, such as its attention, belongs to such a layer."""
    return getattr(module, "compiles_as_whole", False)


def compile_layers(network: nn.Module) -> None:
    """Let torch.compile fuse what each layer does between its matrix products, in place.

    One code serves all layers but the last, which may be asked for a part of its tokens, and all
    lengths. What is compiled is the body of ``forward``: hooks, such as those that gather a layer's
    shards, stay around it. A layer that is computed again for the backward pass is compiled with
    that, which it can be only whole.
    """
    for layer in transformer_blocks(network):
        if getattr(layer, "gradient_checkpointing", False):
            keep_whole(layer)
        layer.forward = torch.compile(layer.forward, dynamic=True)  # type: ignore[method-assign]


@contextmanager
def eager_layers(network: nn.Module) -> Iterator[None]:
    """Run layers uncompiled: who decodes reads and writes a cache in them, a token at a time."""
    is_compiled = any("forward" in vars(part) for part in network.modules())
    # Asking for it loads the compiler.
    with torch.compiler.set_stance("force_eager") if is_compiled else nullcontext():
        yield
