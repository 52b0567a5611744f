"""Packing of trajectories into tensors, and of batches into micro-batches by token budget."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_pl.ops.shape_buckets import round_down
from ragen_pl.types import ImitationBatch, RolloutBatch, TrainingBatch, Trajectory

MAX_MEMBERS = 4096
"""Maximum size of a group: a trajectory's id is its group's id times this, plus its member."""
Batch = TypeVar("Batch", RolloutBatch, TrainingBatch, ImitationBatch)


def pack(
    trajectories: Sequence[Trajectory],
    *,
    weights: Sequence[float],
    imitated: Sequence[Sequence[bool]] | None = None,
    temperature: float = 1.0,
) -> RolloutBatch:
    """Write each trajectory's turns into one row, with its masks and turn ends.

    Args:
        trajectories: The trajectories, one per row; a rank may have none.
        weights: Policy weight of each trajectory.
        imitated: Whether each turn of each demonstration carries loss; by default, every turn does.
        temperature: The temperature at which the tokens were sampled.

    Returns:
        B rows, right-padded to the longest.
    """
    rows = [
        _row(trajectory, imitated[index] if imitated else [True] * len(trajectory.turns))
        for index, trajectory in enumerate(trajectories)
    ] or [_Row([0], [False], [False], [0], [0], [False], *[[0.0]] * 4)]  # dropped again below
    count = len(trajectories)
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    attention_mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    columns: dict[str, Any] = {
        column.name: pad_sequence(
            [_tensor(getattr(row, column.name)) for row in rows], batch_first=True
        )[:count]
        for column in fields(_Row)
    }
    return RolloutBatch(
        **columns,
        attention_mask=attention_mask[:count],
        group_ids=torch.tensor([t.group_id for t in trajectories], dtype=torch.long),
        trajectory_ids=torch.tensor(
            [t.group_id * MAX_MEMBERS + t.member for t in trajectories], dtype=torch.long
        ),
        successes=torch.tensor([t.success for t in trajectories], dtype=torch.bool),
        policy_weights=torch.tensor(weights, dtype=torch.float32),
        temperature=temperature,
    )


def _tensor(numbers: Sequence[float]) -> Tensor:
    """Return the list as a tensor, in a sixth of the time that ``torch.tensor`` takes."""
    tensor = torch.from_numpy(np.array(numbers))
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


@dataclass(slots=True)
class _Row:
    """The columns of one row, one entry per token."""

    input_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    thought_mask: list[bool] = field(default_factory=list)
    turn_index: list[int] = field(default_factory=list)
    state_ids: list[int] = field(default_factory=list)
    turn_ends: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    outcome_rewards: list[float] = field(default_factory=list)
    thought_rewards: list[float] = field(default_factory=list)
    sampled_log_probs: list[float] = field(default_factory=list)


def _row(trajectory: Trajectory, imitated: Sequence[bool]) -> _Row:
    """Return a trajectory's row; a turn that is not imitated has no loss, reward or log-prob."""
    row = _Row(input_ids=list(trajectory.token_ids))
    for number, (turn, is_imitated) in enumerate(zip(trajectory.turns, imitated, strict=True)):
        length, before = len(turn.token_ids), len(turn.prompt_ids)
        row.turn_index += [number] * length
        row.state_ids += [_state_id(turn.anchor_key)] * length
        if is_imitated:
            thought, zeros = turn.thought_tokens, [0.0] * (length - 1)
            # A thought that could not be parsed has no tokens to credit: the whole turn pays.
            judged = turn.thought_reward if thought else 0.0
            row.loss_mask += turn.loss_mask
            row.thought_mask += [before <= place < before + thought for place in range(length)]
            row.turn_ends += [False] * (length - 1) + [True]
            row.rewards += [*zeros, turn.reward]
            row.outcome_rewards += [*zeros, turn.reward - judged]
            row.thought_rewards += [*zeros, judged]
            row.sampled_log_probs += [*[0.0] * before, *turn.completion.log_probs]
        else:
            for marks in (row.loss_mask, row.thought_mask, row.turn_ends):
                marks += [False] * length
            for numbers in (
                *(row.rewards, row.outcome_rewards, row.thought_rewards),
                row.sampled_log_probs,
            ):
                numbers += [0.0] * length
    return row


def _state_id(anchor_key: str) -> int:
    """Hash a state's key, which may be any text, to an integer that is the same on every rank."""
    digest = hashlib.blake2b(anchor_key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # within a signed 64-bit integer


def length_buckets(lengths: Tensor, token_budget: int) -> Iterator[Tensor]:
    """Cut rows into micro-batches of similar length whose padded size stays within a budget.

    Args:
        lengths: (B,) tokens per row.
        token_budget: Upper bound of the number of rows times the longest row; a row that is longer
            is a micro-batch of its own.

    Yields:
        Row indices, every row exactly once.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    at = 0
    while at < len(order):
        longest = max(1, int(lengths[order[at]]))
        count = rows_within(token_budget, longest)
        yield order[at : at + count]
        at += count


def rows_within(token_budget: int, longest: int) -> int:
    """Return the number of rows of a micro-batch whose longest row is given, rounded down to a
    shape bucket."""
    return round_down(max(1, token_budget // longest))


def micro_batches(
    batch: Batch, chosen: Tensor, token_budget: int
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the chosen rows as micro-batches: (row indices, these rows cut to the longest).

    Args:
        batch: Batch of B rows.
        chosen: (B,) bool: the rows to yield.
        token_budget: As in ``length_buckets``.
    """
    index = torch.nonzero(chosen)[:, 0]
    lengths = batch.lengths[index].cpu()
    for rows in length_buckets(lengths, token_budget):
        at = index[rows.to(index.device)]
        yield at, batch.rows(at).cut(int(lengths[rows].max()))


def num_updates(kept: int, collected: int, most: int) -> int:
    """Return the number of optimizer batches of a filtered rollout, at least one.

    Each holds at most as many kept trajectories as a batch of an unfiltered rollout.

    Args:
        kept: Trajectories that the policy learns from, on all ranks.
        collected: All trajectories, on all ranks.
        most: Optimizer batches of an unfiltered rollout.
    """
    return max(1, -(-kept * most // collected))
