"""Make runs that collapse in a known way: a policy of one weight that swings ever further."""

from __future__ import annotations

from typing import Any, cast

import torch

from ragen_pl.types import FormatFault, TrajectoryGroup
from tests.support.doubles import TinyData, TinyModule, make_group, make_trajectory, make_turn


def good() -> list[TrajectoryGroup]:
    return [make_group([0.0, 1.0, 1.0, 2.0], group_id=i) for i in range(4)]


def dead() -> list[TrajectoryGroup]:
    """Nothing that is said is understood."""
    turns = [make_turn(fault=FormatFault.NO_ANSWER, entropies=(3.0,)) for _ in range(5)]
    return [
        TrajectoryGroup(i, i, tuple(make_trajectory(turns, member=n) for n in range(4)))
        for i in range(4)
    ]


class Learner(TinyModule):
    """Swings ever further at its full rate of 1.03, and comes to rest at half of it."""

    rl_start = critic_only_iterations = 0
    hindsight_lr = None

    def __init__(self) -> None:
        super().__init__({"train/grad_norm_policy": 1.0})
        self.lr_scale, self.kl_coef = 1.0, 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.kl_coef += 0.1  # a controller's state
        cast(Any, self.optimizers()).param_groups[0]["lr"] = 1.03 * self.lr_scale
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.03, momentum=0.01)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["own"] = {"lr_scale": self.lr_scale, "kl_coef": self.kl_coef}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.lr_scale, self.kl_coef = checkpoint["own"]["lr_scale"], checkpoint["own"]["kl_coef"]

    def state(self) -> list[float]:
        """Return what a rollback must bring back."""
        buffers = self.trainer.optimizers[0].state.values()
        momentum = [float(state["momentum_buffer"]) for state in buffers]
        return [self.weight.item(), self.kl_coef, *momentum]


class Data(TinyData):
    """The agent fails when its weight is far off."""

    def __init__(self) -> None:
        super().__init__(self.play)

    def play(self, iteration: int) -> list[TrajectoryGroup]:
        module = cast(Any, self.trainer).lightning_module
        return good() if abs(module.weight.item()) < 3 else dead()
