"""Forward passes of the networks over batches of trajectories, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ragen_pl.distributed.collectives import all_reduce_max, gather_objects
from ragen_pl.errors import ConfigError
from ragen_pl.models.kernels.shared_prompts import PromptSharing
from ragen_pl.models.policy import Policy, PolicyOutput
from ragen_pl.rollout.micro_batching import Batch, micro_batches
from ragen_pl.types import RolloutBatch, TokenBatch

ValueFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function from ids, loss mask and attention mask to values, each (B, T): a critic, or the
``values`` of a policy with a value head."""
MAX_LOG_PROB_GAP = 1e-4
"""Largest difference in a token's log-prob at which sampler and trainer count as the same policy.
The ratio is then far inside every clip range, while float32 rounding is a hundred times smaller."""


def log_prob_gap(recomputed: Tensor, sampled: Tensor, mask: Tensor) -> float:
    """Return the largest difference on any rank between the trainer's and the sampler's log-probs
    of marked tokens, each (B, T); -1 if no rank has any, NaN if any is NaN.

    Every rank must call it.
    """
    gaps = (recomputed - sampled).abs()[mask]
    return all_reduce_max(float(gaps.max()) if gaps.numel() else -1.0)


def check_log_prob_gap(recomputed: Tensor, sampled: Tensor, mask: Tensor) -> bool:
    """Check that the sampler's log-probs agree with the trainer's, to serve as old log-probs.

    Every rank must call it.

    Args:
        recomputed: Log-probs of the trainer, (B, T).
        sampled: Log-probs of the sampler, (B, T).
        mask: Tokens to compare, (B, T) bool.

    Returns:
        Whether there was any token, on any rank, to tell by.

    Raises:
        ConfigError: on all ranks, when they differ by more than 1e-4 on a token of one rank.
    """
    gap = log_prob_gap(recomputed, sampled, mask)
    if not gap <= MAX_LOG_PROB_GAP:
        raise ConfigError(
            "model.optimization.old_log_probs is sampled, but sampler and trainer differ by "
            f"{gap:.1e} on a token, which is above {MAX_LOG_PROB_GAP:.0e}: use recomputed, or "
            "precision 32-true"
        )
    return gap >= 0.0


def forward_policy(policy: Policy, micro_batch: TokenBatch) -> PolicyOutput:
    """Return log-probs, entropies and, with a value head, values of a micro-batch, at its
    temperature."""
    return policy(  # type: ignore[no-any-return]
        micro_batch.input_ids,
        micro_batch.loss_mask,
        micro_batch.attention_mask,
        micro_batch.temperature,
    )


def forward_values(value_function: ValueFunction, micro_batch: TokenBatch) -> Tensor:
    """Return the values of a micro-batch, (B, T); zero outside its loss mask."""
    return value_function(micro_batch.input_ids, micro_batch.loss_mask, micro_batch.attention_mask)


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """Passes over a batch, micro-batch by micro-batch, as many on every rank.

    ``micro_batches`` serves passes with gradients, too; the other methods must be called without.
    """

    token_budget: int
    """Tokens of one micro-batch, padding included."""
    device: torch.device
    """Device of the networks; the rollout may be on another."""
    sharing: PromptSharing | None = None
    """How the networks compute equal prompts once, by which micro-batches are then cut."""

    @classmethod
    def of(cls, policy: Policy, token_budget: int, device: torch.device) -> Self:
        """Return the passes of a policy, and of networks with a backbone like its own."""
        return cls(token_budget, device, PromptSharing.of(policy.model.base_model))

    def micro_batches(self, batch: Batch, chosen: Tensor) -> Iterator[tuple[Tensor, Batch]]:
        """Yield (row indices, micro-batch) of the chosen rows, (B,) bool; every rank must call it.

        All ranks get the same number, because sharded networks exchange weights and gradients in
        every pass: a rank with fewer micro-batches of its own ends with some without rows.
        """
        own = list(micro_batches(batch, chosen, self.token_budget, self.sharing))
        no_rows = torch.zeros(0, dtype=torch.long, device=chosen.device)
        missing = max(gather_objects(len(own))) - len(own)
        yield from own
        for _ in range(missing):
            yield no_rows, batch.rows(no_rows).cut(2)

    def log_probs(self, policy: Policy, batch: TokenBatch, chosen: Tensor) -> Tensor:
        """Return the log-probs of the chosen rows, (B, T); zero in all other rows."""

        def forward(micro_batch: TokenBatch) -> tuple[Tensor, ...]:
            return (forward_policy(policy, micro_batch).log_probs,)

        return self._run(batch, chosen, 1, forward)[0]

    def log_probs_and_entropies(
        self, policy: Policy, batch: TokenBatch, chosen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probs and entropies of the chosen rows, each (B, T)."""

        def forward(micro_batch: TokenBatch) -> tuple[Tensor, Tensor]:
            output = forward_policy(policy, micro_batch)
            return output.log_probs, output.entropy

        log_probs, entropies = self._run(batch, chosen, 2, forward)
        return log_probs, entropies

    def values(
        self, value_function: ValueFunction | None, rollout: RolloutBatch, chosen: Tensor
    ) -> Tensor:
        """Return the values of the chosen rows, (B, T); zero in all other rows, and everywhere
        without a value function."""
        if value_function is None:
            return torch.zeros_like(rollout.rewards)
        function = value_function
        return self._run(rollout, chosen, 1, lambda part: (forward_values(function, part),))[0]

    def log_probs_and_values(
        self,
        policy: Policy,
        value_function: ValueFunction | None,
        rollout: RolloutBatch,
        kept: Tensor,
        valued: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probs of the kept rows and the values of the ``valued`` ones, each (B, T).

        With a value head, a single pass over all those rows gives both.
        """
        if policy.value_head is None:
            log_probs = self.log_probs(policy, rollout, kept)
            return log_probs, self.values(value_function, rollout, valued)

        def forward(micro_batch: TokenBatch) -> tuple[Tensor, Tensor]:
            output = forward_policy(policy, micro_batch)
            assert output.values is not None
            return output.log_probs, output.values

        log_probs, values = self._run(rollout, kept | valued, 2, forward)
        return log_probs, values

    def _run(
        self,
        batch: TokenBatch,
        chosen: Tensor,
        num_outputs: int,
        forward: Callable[[TokenBatch], tuple[Tensor, ...]],
    ) -> list[Tensor]:
        """Run ``forward`` on every micro-batch, and collect its outputs in (B, T) tensors."""
        outputs = [
            torch.zeros_like(batch.loss_mask, dtype=torch.float32) for _ in range(num_outputs)
        ]
        for rows, micro_batch in self.micro_batches(batch, chosen):
            for number, result in enumerate(forward(micro_batch.to(self.device))):
                # Networks in double precision have results in it.
                output = outputs[number] = outputs[number].to(result.dtype)
                output[rows, : result.shape[1]] = result.to(output.device)
        return outputs
