"""The optimizer of a run: AdamW for all weights, or Muon for matrices and AdamW for the rest.

The steps are those of PyTorch's Muon, taken for many matrices at a time, and of its AdamW. What is
added is one optimizer around the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.models.matrices import hidden_matrices
from ragen_pl.training.muon import StackedMuon

Group = dict[str, Any]
"""A parameter group: ``params``, their ``part`` of the networks, for matrices an ``lr_factor``, the
optimizer's own settings, and a ``name`` of its own, which callbacks that log by group need."""


def build_optimizer(parts: Mapping[str, nn.Module], config: Optimization) -> Optimizer:
    """Return one optimizer for all parts of the networks, so that ``global_step`` counts one step
    per update.

    It has one parameter group per part, or with Muon one of matrices and one of other weights.
    """
    trained = {
        name: [weight for weight in part.parameters() if weight.requires_grad]
        for name, part in parts.items()
    }
    optimizer: Optimizer
    if config.muon is None:
        groups = [_group(part, weights) for part, weights in trained.items()]
        optimizer = _adamw(groups, config)
    else:
        optimizer = _muon_and_adamw(parts, trained, config)
    _keep_settings(optimizer)
    return optimizer


def _group(part: str, weights: list[nn.Parameter]) -> Group:
    return {"name": part, "part": part, "params": weights}


def _adamw(groups: list[Group], config: Optimization) -> AdamW:
    return AdamW(
        groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


def _muon_and_adamw(
    parts: Mapping[str, nn.Module],
    trained: Mapping[str, list[nn.Parameter]],
    config: Optimization,
) -> CombinedOptimizer:
    assert config.muon is not None
    matrices, others = list[Group](), list[Group]()
    for name, weights in trained.items():
        hidden = set(hidden_matrices(parts[name]))
        factor, own = config.muon.lr_factor, [w for w in weights if w in hidden]
        matrices.append({**_group(name, own), "name": f"{name}/muon", "lr_factor": factor})
        others.append(_group(name, [w for w in weights if w not in hidden]))
    # PyTorch's sharded checkpoints allow no more than one group without weights.
    matrices, others = ([g for g in groups if g["params"]] for groups in (matrices, others))
    members = dict[str, Optimizer]()
    if matrices:
        members["muon"] = StackedMuon(
            matrices,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.muon.momentum,
            nesterov=config.muon.nesterov,
        )
    if others:
        members["adamw"] = _adamw(others, config)
    return CombinedOptimizer(members)


def _keep_settings(optimizer: Optimizer) -> None:
    """Keep the configured settings when a state is loaded.

    PyTorch would replace them by those that the state was saved with, so that a resumed run would
    ignore a changed key. The learning rate is none of them: every step sets it.
    """
    settings = [
        {key: value for key, value in group.items() if key not in ("params", "lr")}
        for group in optimizer.param_groups
    ]

    def restore(loaded: Optimizer) -> None:
        for group, setting in zip(loaded.param_groups, settings, strict=True):
            group.update(setting)

    optimizer.register_load_state_dict_post_hook(restore)


class CombinedOptimizer(Optimizer):
    """Several optimizers as one, each for parameter groups of its own.

    All parameter groups and the whole state are this optimizer's; members are lent theirs for a
    step. Whatever replaces or clears groups and state here, such as loading, therefore holds for
    the members too.

    Args:
        members: Optimizers by the name that their groups get as ``method``.
    """

    def __init__(self, members: Mapping[str, Optimizer]) -> None:
        groups = list[Group]()
        for method, member in members.items():
            groups += [{**group, "method": method} for group in member.param_groups]
        super().__init__(groups, {})
        self._members = dict(members)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of every member."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for method, member in self._members.items():
            member.state = self.state
            member.param_groups = [g for g in self.param_groups if g["method"] == method]
            member.step()
        return loss
