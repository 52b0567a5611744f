"""Make small trajectories and trainers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader

from ragen_pl.types import Completion, StopReason, Trajectory, TrajectoryGroup, Turn


def make_turn(
    reward: float = 0.0,
    *,
    is_valid: bool = True,
    response: str = "Up</answer>",
    thought: str = "",
    entropies: Sequence[float] = (0.5, 0.5),
    is_true: bool | None = None,
) -> Turn:
    """Make a turn whose format penalty, where it applies, is -0.1."""
    n = len(entropies)
    return Turn(
        prompt_ids=(1, 2, 3),
        completion=Completion((7,) * n, (-0.5,) * n, tuple(entropies), stopped=True),
        observation="#P_",
        state_hash="s",
        response=response,
        thought=thought,
        actions=("Up",) if is_valid else (),
        rewards={"env": reward, "format": 0.0 if is_valid else -0.1},
        is_valid=is_valid,
        is_true=is_true,
    )


def make_trajectory(
    turns: Sequence[Turn],
    *,
    seed: int = 0,
    group_id: int = 0,
    member: int = 0,
    success: bool = False,
    stratum: str = "",
    stop_reason: StopReason = StopReason.MAX_TURNS,
) -> Trajectory:
    """Make a trajectory from its turns."""
    return Trajectory(
        group_id, member, seed, "double", stratum, tuple(turns), {}, {}, stop_reason, success
    )


def make_group(
    returns: Sequence[float],
    *,
    group_id: int = 0,
    seed: int | None = None,
    broken: Sequence[int] = (),
) -> TrajectoryGroup:
    """Make one-turn trajectories with these returns; those above 0 succeed.

    Args:
        broken: Members whose environment raised.
    """
    seed = 1000 + group_id if seed is None else seed
    members = tuple(
        make_trajectory(
            [make_turn(value)],
            seed=seed,
            group_id=group_id,
            member=n,
            success=value > 0,
            stop_reason=StopReason.ENV_ERROR if n in broken else StopReason.TERMINATED,
        )
        for n, value in enumerate(returns)
    )
    return TrajectoryGroup(group_id, seed, members)


class TinyModule(LightningModule):
    """Fit one weight, so that a real trainer can run the callbacks."""

    phase = "rl"

    def __init__(self, metrics: dict[str, float] | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.metrics = metrics or {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        for name, value in self.metrics.items():
            self.log(name, value, on_step=False, on_epoch=True, batch_size=1)
        return self.weight.square()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def one_batch() -> DataLoader[Any]:
    """Make a loader of a single batch."""
    return DataLoader([torch.zeros(1)])  # type: ignore[arg-type]
