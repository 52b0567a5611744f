"""Snapshots of a learner, which restore it bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from ragen_pl.distributed.collectives import rank
from ragen_pl.distributed.sharding import (
    full_state_dict,
    full_tensor,
    load_full_optimizer_state,
    load_full_state,
)

Plain = dict[str, Any]
"""Tensors, numbers and text in dicts and lists, as a checkpoint may hold them."""

NOT_RESTORED = ("iteration", "phase", "rl_start", "skipped_steps", "lr_scale")
"""Entries of a module's own state that mark the position of the run; they are never restored."""


def take_snapshot(module: LightningModule, optimizers: Sequence[torch.optim.Optimizer]) -> Plain:
    """Copy a learner's state to CPU memory.

    A snapshot holds trainable weights, buffers, the optimizers' states (their moments) and
    what the module itself saves in a checkpoint. Frozen weights, such as those of a reference
    policy or of the base under adapters, are left out: they do not change.

    Every rank must call it, and restore the snapshot together with the others, because only the
    first rank has the tensors of sharded weights and moments.
    """
    weights = full_state_dict(module, trainable_only=True)
    # Not get_optimizer_state_dict: it fills an empty state by taking a step.
    return {
        "weights": {name: _to_cpu(weights.pop(name)) for name in list(weights)},
        "optimizers": [tree_map_only(Tensor, _to_cpu, o.state_dict()) for o in optimizers],
        "module": _module_state(module),
    }


def restore_snapshot(
    snapshot: Plain, module: LightningModule, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """Restore a learner's state in place, but for the position of the run (``NOT_RESTORED``).

    A snapshot can be restored any number of times. An optimizer that is newer than the snapshot,
    such as hindsight imitation's, forgets its moments. Every rank must call it.
    """
    load_full_state(module, snapshot["weights"])
    for optimizer, state in zip_longest(optimizers, snapshot["optimizers"]):
        if state is None:
            optimizer.state.clear()
        elif optimizer is not None:
            # Copied, since the optimizer would otherwise keep and update the snapshot's tensors.
            load_full_optimizer_state(tree_map_only(Tensor, _to_cpu, state), optimizer)
    current = _module_state(module)
    merged = {
        part: {**state, **{key: current[part][key] for key in NOT_RESTORED if key in current[part]}}
        for part, state in snapshot["module"].items()
    }
    module.on_load_checkpoint(merged)


def _module_state(module: LightningModule) -> Plain:
    """Return what the module itself adds to a checkpoint."""
    state: Plain = {}
    module.on_save_checkpoint(state)
    copied: Plain = tree_map_only(Tensor, _to_cpu, state)
    return copied


def _to_cpu(tensor: Tensor) -> Tensor:
    """Copy a tensor to CPU memory; of a sharded one, all ranks but the first get a meta tensor of
    its shape."""
    if isinstance(tensor, DTensor):
        full = full_tensor(tensor.detach())
        return full.to("cpu", copy=True) if rank() == 0 else full.to("meta")
    return tensor if tensor.is_meta else tensor.detach().to("cpu", copy=True)
