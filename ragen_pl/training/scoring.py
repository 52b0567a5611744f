"""Passes of the networks over batches of trajectories, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.distributed.collectives import all_reduce_max, gather_objects
from ragen_pl.models.policy import Policy, PolicyOutput
from ragen_pl.rollout.packing import Batch, micro_batches
from ragen_pl.types import RolloutBatch

ValueFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From ids, loss mask and attention mask, each (B, T), to values: a critic, or the ``values`` of a
policy with a value head."""
_AGREEMENT = 1e-4
"""Largest distance of log-probs at which sampler and trainer are the same policy: a ratio so near 1
is far inside every clip range, and rounding in float32 stays a hundred times below."""


def check_agreement(recomputed: Tensor, sampled: Tensor, mask: Tensor) -> None:
    """Refuse the sampler's log-probs as old log-probs where the trainer's differ; every rank must
    call it.

    Args:
        recomputed: (B, T), the trainer's.
        sampled: (B, T), the sampler's.
        mask: (B, T) bool, the tokens that count.

    Raises:
        ValueError: on all ranks, when those of a token differ by more than 1e-4 on any.
    """
    gaps = (recomputed - sampled).abs()[mask]
    gap = all_reduce_max(float(gaps.max()) if gaps.numel() else 0.0)
    if not gap <= _AGREEMENT:
        raise ValueError(
            "optimization.old_log_probs is sampled, but sampler and trainer differ by "
            f"{gap:.1e} on a token, which is above {_AGREEMENT:.0e}: use recomputed, or "
            "precision 32-true"
        )


def score_policy(policy: Policy, part: RolloutBatch) -> PolicyOutput:
    """Return log-probs, entropies and, with a value head, values of one micro-batch, at the
    temperature it was sampled at."""
    return policy(part.input_ids, part.loss_mask, part.attention_mask, part.temperature)  # type: ignore[no-any-return]


def score_values(value_function: ValueFunction, part: RolloutBatch) -> Tensor:
    """Return the values of one micro-batch, (B, T), zero off its loss mask."""
    return value_function(part.input_ids, part.loss_mask, part.attention_mask)


@dataclass(frozen=True, slots=True)
class LogProbPass:
    """Passes over a collection without gradients: log-probs and values."""

    token_budget: int
    """Padded tokens of one micro-batch."""
    device: torch.device
    """Of the networks; a collection may lie elsewhere."""

    def micro_batches(self, batch: Batch, chosen: Tensor) -> Iterator[tuple[Tensor, Batch]]:
        """Yield (row indices, micro-batch) of the chosen rows, (B,) bool; every rank must call it.

        All ranks get equally many, the last ones of some without rows: sharded networks exchange
        weights and gradients in every pass.
        """
        own = list(micro_batches(batch, chosen, self.token_budget))
        none = torch.zeros(0, dtype=torch.long, device=chosen.device)
        missing = max(gather_objects(len(own))) - len(own)
        yield from own
        for _ in range(missing):
            yield none, batch.rows(none).cut(2)

    def log_probs(self, policy: Policy, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        """Return the log-probs of the chosen rows, (B, T), zero in the others."""

        def forward(part: RolloutBatch) -> tuple[Tensor, ...]:
            return (score_policy(policy, part).log_probs,)

        return self._over(rollout, chosen, 1, forward)[0]

    def values(
        self, value_function: ValueFunction | None, rollout: RolloutBatch, chosen: Tensor
    ) -> Tensor:
        """Return the values of the chosen rows, (B, T), zero in the others; zeros without a value
        function."""
        if value_function is None:
            return torch.zeros_like(rollout.rewards)
        function = value_function
        return self._over(rollout, chosen, 1, lambda part: (score_values(function, part),))[0]

    def log_probs_and_values(
        self,
        policy: Policy,
        value_function: ValueFunction | None,
        rollout: RolloutBatch,
        kept: Tensor,
        valued: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probs of the kept rows and the values of the ``valued`` ones, each (B, T).

        Where the policy has a value head, one pass over all those rows gives both.
        """
        if policy.value_head is None:
            log_probs = self.log_probs(policy, rollout, kept)
            return log_probs, self.values(value_function, rollout, valued)

        def forward(part: RolloutBatch) -> tuple[Tensor, Tensor]:
            output = score_policy(policy, part)
            assert output.values is not None
            return output.log_probs, output.values

        log_probs, values = self._over(rollout, kept | valued, 2, forward)
        return log_probs, values

    def _over(
        self,
        rollout: RolloutBatch,
        chosen: Tensor,
        count: int,
        forward: Callable[[RolloutBatch], tuple[Tensor, ...]],
    ) -> list[Tensor]:
        """Lay the micro-batches' results, ``count`` tensors each, out as (B, T) tensors."""
        found = [torch.zeros_like(rollout.rewards) for _ in range(count)]
        for rows, part in self.micro_batches(rollout, chosen):
            results = forward(part.to(self.device))
            for whole, result in zip(found, results, strict=True):
                whole[rows, : result.shape[1]] = result.to(whole.device)
        return found
