"""Run the networks over batches of trajectories, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.distributed.collectives import all_reduce_max, gather_objects
from ragen_pl.models.policy import Policy, PolicyOutput
from ragen_pl.rollout.packing import micro_batches
from ragen_pl.types import RolloutBatch

ValueFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From ids, mask and padding, each (B, T), to values: a critic, or ``values`` of a policy."""
_AGREEMENT = 1e-4
"""Largest distance of log-probs at which sampler and trainer are the same policy: a ratio so near 1
is far inside every clip range, and rounding in float32 stays a hundred times below."""


def check_agreement(recomputed: Tensor, sampled: Tensor, mask: Tensor) -> None:
    """Refuse to take the sampler's log-probs for the trainer's when they differ; every rank must
    call it.

    Args:
        recomputed: (B, T), the trainer's.
        sampled: (B, T), the sampler's.
        mask: (B, T) bool, the tokens that count.

    Raises:
        ValueError: on all ranks, when a token's differ by more than 1e-4 on any.
    """
    gaps = (recomputed - sampled).abs()[mask]
    gap = all_reduce_max(float(gaps.max()) if gaps.numel() else 0.0)
    if not gap <= _AGREEMENT:
        raise ValueError(
            "optimization.old_log_probs is sampled, but sampler and trainer differ by "
            f"{gap:.1e} on a token, which is above {_AGREEMENT:.0e}: use recomputed, or "
            "precision 32-true"
        )


@dataclass(frozen=True, slots=True)
class LogProbPass:
    """Score sampled tokens under a policy or a critic."""

    temperature: float
    """That the tokens were sampled at."""
    token_budget: int
    """Padded tokens of one pass."""
    device: torch.device
    """Of the networks; a collection may lie elsewhere."""

    def score(self, policy: Policy, part: RolloutBatch) -> PolicyOutput:
        """Score one micro-batch."""
        return policy(part.input_ids, part.loss_mask, part.attention_mask, self.temperature)  # type: ignore[no-any-return]

    def cut(self, rollout: RolloutBatch, chosen: Tensor) -> Iterator[tuple[Tensor, RolloutBatch]]:
        """Yield (row indices, micro-batch) of the chosen rows, (B,) bool; every rank must call it.

        All ranks get equally many, the last ones of some without rows: sharded networks exchange
        weights and gradients in every pass.
        """
        own = list(micro_batches(rollout, chosen, self.token_budget))
        none = torch.zeros(0, dtype=torch.long, device=chosen.device)
        missing = max(gather_objects(len(own))) - len(own)
        yield from own
        for _ in range(missing):
            yield none, rollout.rows(none).cut(2)

    def log_probs(self, policy: Policy, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        """Return the log-probs of the chosen rows, (B, T), zero in the others."""
        return self._over(rollout, chosen, 1, lambda part: (self.score(policy, part).log_probs,))[0]

    def values(
        self, estimate: ValueFunction | None, rollout: RolloutBatch, chosen: Tensor
    ) -> Tensor:
        """Return the values of the chosen rows, (B, T), zero in the others; zeros where nothing
        estimates them."""
        if estimate is None:
            return torch.zeros_like(rollout.rewards)
        return self._over(rollout, chosen, 1, lambda part: (score_values(estimate, part),))[0]

    def both(
        self,
        policy: Policy,
        estimate: ValueFunction | None,
        rollout: RolloutBatch,
        kept: Tensor,
        chosen: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probs of the kept rows and the values of the chosen ones, each (B, T); one
        pass gives both, of all those rows, where the policy has a value head."""
        if policy.value_head is None:
            log_probs = self.log_probs(policy, rollout, kept)
            return log_probs, self.values(estimate, rollout, chosen)

        def forward(part: RolloutBatch) -> tuple[Tensor, Tensor]:
            scores = self.score(policy, part)
            assert scores.values is not None
            return scores.log_probs, scores.values

        log_probs, values = self._over(rollout, kept | chosen, 2, forward)
        return log_probs, values

    def _over(
        self,
        rollout: RolloutBatch,
        chosen: Tensor,
        count: int,
        forward: Callable[[RolloutBatch], tuple[Tensor, ...]],
    ) -> list[Tensor]:
        """Lay the micro-batches' results, ``count`` tensors each, out as whole ones."""
        found = [torch.zeros_like(rollout.rewards) for _ in range(count)]
        for rows, part in self.cut(rollout, chosen):
            results = forward(part.to(self.device))
            for whole, result in zip(found, results, strict=True):
                whole[rows, : result.shape[1]] = result.to(whole.device)
        return found


def score_values(estimate: ValueFunction, part: RolloutBatch) -> Tensor:
    """Return the values of one micro-batch, (B, T), zero off its loss mask."""
    return estimate(part.input_ids, part.loss_mask, part.attention_mask)
