"""Lay trajectories out as tensors, and cut batches into micro-batches by token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ragen_pl.types import RolloutBatch, Trajectory


def pack(
    trajectories: Sequence[Trajectory],
    *,
    weights: Sequence[float],
    imitated: Sequence[Sequence[bool]] | None = None,
    reward_scale: float = 1.0,
    pad_id: int = 0,
) -> RolloutBatch:
    """Concatenate each trajectory's turns into one row, writing masks and turn ends on the way.

    Args:
        weights: Policy weight of each trajectory.
        imitated: For demonstrations, which turns carry loss; every turn does by default.
        reward_scale: Multiplies the rewards (a value head learns best on targets near 1).

    Returns:
        B rows, right-padded to the longest.
    """
    lengths = [
        sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in trajectory.turns)
        for trajectory in trajectories
    ]
    shape = (len(trajectories), max(lengths, default=1))
    input_ids = torch.full(shape, pad_id, dtype=torch.long)
    loss_mask, turn_ends = (
        torch.zeros(shape, dtype=torch.bool),
        torch.zeros(shape, dtype=torch.bool),
    )
    turn_index = torch.zeros(shape, dtype=torch.long)
    rewards, log_probs = torch.zeros(shape), torch.zeros(shape)
    for row, trajectory in enumerate(trajectories):
        at = 0
        for number, turn in enumerate(trajectory.turns):
            start = at + len(turn.prompt_ids)
            end = start + len(turn.completion.token_ids)
            input_ids[row, at:end] = torch.tensor(turn.prompt_ids + turn.completion.token_ids)
            turn_index[row, at:end] = number
            if imitated is None or imitated[row][number]:
                loss_mask[row, start:end] = True
                turn_ends[row, end - 1] = True
                rewards[row, end - 1] = turn.reward * reward_scale
                log_probs[row, start:end] = torch.tensor(turn.completion.log_probs)
            at = end
    attention_mask = torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]
    return RolloutBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        loss_mask=loss_mask,
        turn_index=turn_index,
        turn_ends=turn_ends,
        rewards=rewards,
        sampled_log_probs=log_probs,
        group_ids=torch.tensor([t.group_id for t in trajectories]),
        trajectory_ids=torch.tensor([t.group_id * 4096 + t.member for t in trajectories]),
        policy_weights=torch.tensor(weights, dtype=torch.float32),
    )


def minibatches(lengths: Tensor, token_budget: int) -> Iterator[Tensor]:
    """Cut rows into micro-batches of similar length whose padded size stays within a budget.

    Args:
        lengths: (B,) tokens per row.
        token_budget: Upper bound of rows times longest row; a longer row goes alone.

    Yields:
        Row indices, every row exactly once.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    at = 0
    while at < len(order):
        longest = max(1, int(lengths[order[at]]))
        count = max(1, token_budget // longest)
        yield order[at : at + count]
        at += count


def micro_batches(
    rollout: RolloutBatch, chosen: Tensor, token_budget: int
) -> Iterator[tuple[Tensor, RolloutBatch]]:
    """Yield (row indices, those rows cut to their longest) of the chosen rows, within the budget.

    Args:
        rollout: B rows.
        chosen: (B,) bool.
        token_budget: As in ``minibatches``.
    """
    index = torch.nonzero(chosen)[:, 0]
    lengths = rollout.attention_mask.sum(1)[index].cpu()
    for rows in minibatches(lengths, token_budget):
        at = index[rows.to(index.device)]
        yield at, rollout.rows(at).cut(int(lengths[rows].max()))
