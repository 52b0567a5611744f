"""Run the networks over batches of trajectories, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.models.policy import Critic, Policy
from ragen_pl.packing import micro_batches
from ragen_pl.types import RolloutBatch


@dataclass(frozen=True, slots=True)
class Scorer:
    """Score sampled tokens under a policy or a critic."""

    temperature: float
    """That the tokens were sampled at."""
    token_budget: int
    """Padded tokens of one pass."""
    device: torch.device
    """Of the networks; a collection may lie elsewhere."""

    def score(self, policy: Policy, part: RolloutBatch) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of one micro-batch, each (B, T), 0 off its mask."""
        return policy(part.input_ids, part.loss_mask, part.attention_mask, self.temperature)  # type: ignore[no-any-return]

    def cut(self, rollout: RolloutBatch, chosen: Tensor) -> Iterator[tuple[Tensor, RolloutBatch]]:
        """Yield (row indices, micro-batch) of the chosen rows, (B,) bool."""
        return micro_batches(rollout, chosen, self.token_budget)

    def log_probs(self, policy: Policy, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        """Return the log-probs of the chosen rows, (B, T), zero in the others."""
        return self._over(rollout, chosen, lambda part: self.score(policy, part)[0])

    def values(self, critic: Critic, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        """Return the values of the chosen rows, (B, T), zero in the others."""
        return self._over(rollout, chosen, lambda part: score_values(critic, part))

    def _over(
        self, rollout: RolloutBatch, chosen: Tensor, forward: Callable[[RolloutBatch], Tensor]
    ) -> Tensor:
        """Lay the micro-batches' results out as one tensor beside the rollout."""
        whole = torch.zeros_like(rollout.rewards)
        for rows, part in self.cut(rollout, chosen):
            result = forward(part.to(self.device))
            whole[rows, : result.shape[1]] = result.to(whole.device)
        return whole


def score_values(critic: Critic, part: RolloutBatch) -> Tensor:
    """Return the values of one micro-batch, (B, T), zero off its loss mask."""
    return critic(part.input_ids, part.loss_mask, part.attention_mask)  # type: ignore[no-any-return]
