"""Training sequences as token rows, padded into batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_pl.rollout.config import MAX_GROUP_SIZE
from ragen_pl.types import (
    Answer,
    RolloutBatch,
    TokenBatch,
    TokenRow,
    TokenSequence,
    Trajectory,
    Turn,
    token_sequences,
)


def member_of(trajectory_id: int) -> int:
    """Return a trajectory's number in its group, from its id in a batch."""
    return trajectory_id % MAX_GROUP_SIZE


def trajectory_id(trajectory: Trajectory) -> int:
    """Return a trajectory's id in batches, unique within the iteration over all ranks."""
    return trajectory.group_id * MAX_GROUP_SIZE + trajectory.member


def token_rows(
    turns: Sequence[Turn], learned: Sequence[bool], given: Sequence[int] = ()
) -> tuple[TokenRow, ...]:
    """Write each training sequence of successive turns, from the first one on, as a token row.

    Args:
        turns: The turns.
        learned: Whether each turn's response is learned. Summaries always are.
        given: Number of each response's first tokens that are context, as its prompt is; by
            default, none.
    """
    are_learned, starts = iter(learned), iter(given or [0] * len(turns))
    rows = []
    for sequence in token_sequences(turns):
        loss_mask: list[bool] = []
        for answer in sequence.answers:
            is_turn = isinstance(answer, Turn)
            is_learned, start = (next(are_learned), next(starts)) if is_turn else (True, 0)
            context = len(answer.prompt_ids) + start
            loss_mask += [False] * context + [is_learned] * (len(answer.token_ids) - context)
        rows.append(TokenRow(sequence.token_ids, tuple(loss_mask)))
    return tuple(rows)


def token_batch(rows: Sequence[TokenRow]) -> TokenBatch:
    """Pad token rows to the longest; without rows, B is 0 and T is 1."""
    return TokenBatch(
        input_ids=_padded([row.token_ids for row in rows], 0),
        attention_mask=_padded([[True] * len(row.token_ids) for row in rows], False),
        loss_mask=_padded([row.loss_mask for row in rows], False),
    )


def _padded(rows: Sequence[Sequence[float]], padding: float) -> Tensor:
    """Return numbers, or truth values, as a tensor (B, T), right-padded with zeros.

    Args:
        rows: The rows; there may be none.
        padding: Zero of the rows' type.
    """
    # A last row of padding gives the type, and is dropped: there may be no other.
    return pad_sequence([_tensor(row) for row in (*rows, [padding])], batch_first=True)[:-1]


def _tensor(numbers: Sequence[float]) -> Tensor:
    """Return the list as a tensor, in a sixth of the time that ``torch.tensor`` takes."""
    tensor = torch.from_numpy(np.array(numbers))
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def pack(
    trajectories: Sequence[Trajectory], *, weights: Sequence[float], temperature: float = 1.0
) -> RolloutBatch:
    """Write each training sequence into one row, with what was recorded of its turns.

    Args:
        trajectories: The trajectories; a rank may have none.
        weights: Policy weight of each trajectory.
        temperature: The temperature at which the tokens were sampled.

    Returns:
        B rows, right-padded to the longest; those of a trajectory follow each other.
    """
    written = [trajectory.sequences for trajectory in trajectories]
    sequences = [sequence for of_trajectory in written for sequence in of_trajectory]
    records = [_Record.of(sequence) for sequence in sequences]
    owners = [index for index, of_trajectory in enumerate(written) for _ in of_trajectory]
    owned = [trajectories[index] for index in owners]
    numbers = [number for of_trajectory in written for number in range(len(of_trajectory))]
    tokens = token_batch([TokenRow(each.token_ids, each.loss_mask) for each in sequences])
    return RolloutBatch(
        *(tokens.input_ids, tokens.attention_mask, tokens.loss_mask),
        temperature=temperature,
        turn_index=_padded([record.turn_index for record in records], 0),
        state_ids=_padded([record.state_ids for record in records], 0),
        turn_ends=_padded([record.turn_ends for record in records], False),
        rewards=_padded([record.rewards for record in records], 0.0),
        outcome_rewards=_padded([record.outcome_rewards for record in records], 0.0),
        thought_rewards=_padded([record.thought_rewards for record in records], 0.0),
        thought_mask=_padded([record.thought_mask for record in records], False),
        sampled_log_probs=_padded([record.sampled_log_probs for record in records], 0.0),
        group_ids=torch.tensor([t.group_id for t in owned], dtype=torch.long),
        trajectory_ids=torch.tensor([trajectory_id(t) for t in owned], dtype=torch.long),
        sequence_index=torch.tensor(numbers, dtype=torch.long),
        trajectory_tokens=torch.tensor([t.num_sampled_tokens for t in owned], dtype=torch.long),
        successes=torch.tensor([t.success for t in owned], dtype=torch.bool),
        policy_weights=torch.tensor([weights[index] for index in owners], dtype=torch.float32),
        env_ids=torch.zeros(len(owned), dtype=torch.long),
        sampled_values=_sampled_values(sequences),
    )


def _sampled_values(sequences: Sequence[TokenSequence]) -> Tensor | None:
    """Return the values that the engine reported, (B, T); None if any completion has none."""
    rows: list[list[float]] = []
    for sequence in sequences:
        row: list[float] = []
        for answer in sequence.answers:
            if answer.completion.values is None:
                return None
            row += [*[0.0] * len(answer.prompt_ids), *answer.completion.values]
        rows.append(row)
    return _padded(rows, 0.0)


@dataclass(slots=True)
class _Record:
    """What was recorded of a training sequence, one entry per token."""

    turn_index: list[int] = field(default_factory=list)
    state_ids: list[int] = field(default_factory=list)
    turn_ends: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    outcome_rewards: list[float] = field(default_factory=list)
    thought_rewards: list[float] = field(default_factory=list)
    thought_mask: list[bool] = field(default_factory=list)
    sampled_log_probs: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, sequence: TokenSequence) -> Self:
        record = cls()
        for number, answer in enumerate(sequence.answers, start=sequence.first_answer):
            record._add(number, answer)
        return record

    def _add(self, number: int, answer: Answer) -> None:
        length, before = len(answer.token_ids), len(answer.prompt_ids)
        reward, thought_reward, thought_tokens = 0.0, 0.0, 0
        if isinstance(answer, Turn):
            reward, thought_tokens = answer.reward, answer.thought_tokens
            # A thought that could not be parsed has no tokens to credit: the whole turn pays.
            thought_reward = answer.thought_reward if thought_tokens else 0.0
        zeros = [0.0] * (length - 1)
        self.turn_index += [number] * length
        self.state_ids += [_state_id(answer.anchor_key)] * length
        self.turn_ends += [False] * (length - 1) + [True]
        self.rewards += [*zeros, reward]
        self.outcome_rewards += [*zeros, reward - thought_reward]
        self.thought_rewards += [*zeros, thought_reward]
        self.thought_mask += [before <= place < before + thought_tokens for place in range(length)]
        self.sampled_log_probs += [*[0.0] * before, *answer.completion.log_probs]


def _state_id(anchor_key: str) -> int:
    """Hash a state's key, which may be any text, to an integer that is the same on every rank."""
    digest = hashlib.blake2b(anchor_key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # within a signed 64-bit integer
