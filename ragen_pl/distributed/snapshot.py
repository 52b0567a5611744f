"""Copy what training changes, and put it back bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.distributed.tensor import DTensor

from ragen_pl.distributed.collectives import rank
from ragen_pl.distributed.sharding import full_tensor, load_full_optimizer_state, load_full_state

Plain = dict[str, Any]
"""Tensors, numbers and text in dicts and lists: what a checkpoint may hold."""

NOT_RESTORED = ("iteration", "phase", "rl_start", "skipped_steps", "lr_scale")
"""Entries of a module's own state that say where the run is: they are never put back."""


def take_snapshot(module: LightningModule, optimizer: torch.optim.Optimizer) -> Plain:
    """Copy a learner's state to CPU memory.

    Every rank must call it, and put it back with the others: of weights that are sharded the first
    one holds all. There are the trainable weights and the buffers, the optimizer's state (two
    moments per weight) and what else the module saves with a checkpoint. Frozen weights, such as a
    reference policy's or the base's under an adapter, are left out: they do not change.
    """
    named = module.named_parameters(remove_duplicate=False)  # a shared base has several names
    frozen = {name for name, weight in named if not weight.requires_grad}
    weights = {name: value for name, value in module.state_dict().items() if name not in frozen}
    copied: Plain = _copy({"weights": weights, "optimizer": optimizer.state_dict()})
    return copied | {"module": _own_state(module)}


def restore_snapshot(
    snapshot: Plain, module: LightningModule, optimizer: torch.optim.Optimizer
) -> None:
    """Put a learner's state back in place; the run's position goes on (``NOT_RESTORED``).

    The same snapshot can be put back again.
    """
    load_full_state(snapshot["weights"], module.state_dict())
    load_full_optimizer_state(_copy(snapshot["optimizer"]), optimizer)
    now = _own_state(module)
    merged = {
        part: {**state, **{name: now[part][name] for name in NOT_RESTORED if name in now[part]}}
        for part, state in snapshot["module"].items()
    }
    module.on_load_checkpoint(merged)


def _own_state(module: LightningModule) -> Plain:
    """Return what the module itself adds to a checkpoint."""
    state: Plain = {}
    module.on_save_checkpoint(state)
    copied: Plain = _copy(state)
    return copied


def _copy(tree: Any) -> Any:
    """Copy nested plain data; tensors to CPU memory of their own.

    What is sharded is gathered: the first rank keeps it whole, the others its shape.
    """
    if isinstance(tree, DTensor):
        complete = full_tensor(tree.detach())
        return complete.to("cpu", copy=True) if rank() == 0 else complete.to("meta")
    if isinstance(tree, Tensor) and tree.is_meta:
        return tree
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_copy(value) for value in tree)
    return tree
