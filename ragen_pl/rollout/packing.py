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
from ragen_pl.rollout.config import MAX_GROUP_SIZE
from ragen_pl.types import (
    Answer,
    ImitationBatch,
    RolloutBatch,
    TrainingBatch,
    Trajectory,
    Turn,
)

Batch = TypeVar("Batch", RolloutBatch, TrainingBatch, ImitationBatch)


def member_of(trajectory_id: int) -> int:
    """Return a trajectory's number in its group, from its id in a batch."""
    return trajectory_id % MAX_GROUP_SIZE


def pack(
    trajectories: Sequence[Trajectory],
    *,
    weights: Sequence[float],
    imitated: Sequence[Sequence[bool]] | None = None,
    temperature: float = 1.0,
) -> RolloutBatch:
    """Write each training sequence into one row, with its masks and turn ends.

    Args:
        trajectories: The trajectories; a rank may have none.
        weights: Policy weight of each trajectory.
        imitated: Whether each turn of each demonstration carries loss; by default, every turn does.
            Summaries always do.
        temperature: The temperature at which the tokens were sampled.

    Returns:
        B rows, right-padded to the longest; those of a trajectory follow each other.
    """
    written = [
        _rows(trajectory, imitated[index] if imitated else [True] * len(trajectory.turns))
        for index, trajectory in enumerate(trajectories)
    ]
    rows = [row for of_trajectory in written for row in of_trajectory]
    owners = [index for index, of_trajectory in enumerate(written) for _ in of_trajectory]
    tokens = [sum(sum(row.loss_mask) for row in of_trajectory) for of_trajectory in written]
    count = len(rows)
    # Without any trajectory, a row is padded and dropped again below.
    rows = rows or [_Row([0], [False], [False], [0], [0], [False], *[[0.0]] * 4)]
    owned = [trajectories[index] for index in owners]
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
        group_ids=torch.tensor([t.group_id for t in owned], dtype=torch.long),
        trajectory_ids=torch.tensor(
            [t.group_id * MAX_GROUP_SIZE + t.member for t in owned], dtype=torch.long
        ),
        sequence_index=torch.tensor(
            [number for of_trajectory in written for number in range(len(of_trajectory))],
            dtype=torch.long,
        ),
        trajectory_tokens=torch.tensor([tokens[index] for index in owners], dtype=torch.long),
        successes=torch.tensor([t.success for t in owned], dtype=torch.bool),
        policy_weights=torch.tensor([weights[index] for index in owners], dtype=torch.float32),
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


def _rows(trajectory: Trajectory, imitated: Sequence[bool]) -> list[_Row]:
    """Return a row for each training sequence of a trajectory.

    A turn that is not imitated has no loss, reward or log-prob.
    """
    is_imitated = iter(imitated)
    rows = []
    for sequence in trajectory.sequences:
        row = _Row(input_ids=list(sequence.token_ids))
        for number, answer in enumerate(sequence.answers, start=sequence.first_answer):
            row.turn_index += [number] * len(answer.token_ids)
            row.state_ids += [_state_id(answer.anchor_key)] * len(answer.token_ids)
            if not isinstance(answer, Turn):
                _add_loss(row, answer, reward=0.0, thought_reward=0.0, thought_tokens=0)
            elif next(is_imitated):
                # A thought that could not be parsed has no tokens to credit: the whole turn pays.
                judged = answer.thought_reward if answer.thought_tokens else 0.0
                _add_loss(
                    row,
                    answer,
                    reward=answer.reward,
                    thought_reward=judged,
                    thought_tokens=answer.thought_tokens,
                )
            else:
                _add_context(row, len(answer.token_ids))
        rows.append(row)
    return rows


def _add_loss(
    row: _Row, answer: Answer, *, reward: float, thought_reward: float, thought_tokens: int
) -> None:
    """Add an answer that carries loss."""
    length, before = len(answer.token_ids), len(answer.prompt_ids)
    zeros = [0.0] * (length - 1)
    row.loss_mask += answer.loss_mask
    row.thought_mask += [before <= place < before + thought_tokens for place in range(length)]
    row.turn_ends += [False] * (length - 1) + [True]
    row.rewards += [*zeros, reward]
    row.outcome_rewards += [*zeros, reward - thought_reward]
    row.thought_rewards += [*zeros, thought_reward]
    row.sampled_log_probs += [*[0.0] * before, *answer.completion.log_probs]


def _add_context(row: _Row, length: int) -> None:
    """Add tokens without loss."""
    for marks in (row.loss_mask, row.thought_mask, row.turn_ends):
        marks += [False] * length
    for numbers in (
        *(row.rewards, row.outcome_rewards, row.thought_rewards),
        row.sampled_log_probs,
    ):
        numbers += [0.0] * length


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
