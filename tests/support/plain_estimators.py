"""Spell out every estimator in plain Python, one sum after the other, from its paper's definition.

Nothing of ``ragen_pl.ops`` is used: tensors only come in and go out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from ragen_pl.types import RolloutBatch

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Row:
    """Hold the sampled tokens of one trajectory."""

    group: int
    kept: bool
    success: bool
    turns: list[int]
    states: list[int]
    rewards: list[float]
    values: list[float]

    def places(self, turn: int) -> list[int]:
        return [t for t, its in enumerate(self.turns) if its == turn]

    def earned(self) -> list[float]:
        """Return the reward of each turn."""
        return [
            sum(self.rewards[t] for t in self.places(turn)) for turn in range(self.turns[-1] + 1)
        ]


Numbers = list[list[float]]
Plain = Callable[[list[Row]], Numbers]


def rows_of(rollout: RolloutBatch, penalty: Tensor, values: Tensor, *, whole: bool) -> list[Row]:
    """Read a collection.

    Args:
        penalty: Taken off at each token.
        whole: Whether rewards are credited at the last token.
    """
    found = []
    for row, at in enumerate(rollout.loss_mask):
        columns = (rollout.turn_index, rollout.state_ids, rollout.rewards, values, penalty)
        turns, states, rewards, guesses, costs = (column[row, at].tolist() for column in columns)
        if whole:
            rewards = [0.0] * (len(rewards) - 1) + [sum(rewards)]
        found.append(
            Row(
                int(rollout.group_ids[row]),
                float(rollout.policy_weights[row]) > 0,
                bool(rollout.successes[row]),
                turns,
                states,
                [reward - cost for reward, cost in zip(rewards, costs, strict=True)],
                guesses,
            )
        )
    return found


def laid_out(numbers: Numbers, mask: Tensor) -> Tensor:
    """Put each row's numbers at its sampled tokens; (B, T)."""
    flat = torch.tensor([x for row in numbers for x in row], dtype=torch.float64)
    return torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, flat)


def compared(own: float, peers: list[float], *, divide: bool) -> float:
    """Compare a number with its peers', itself among them."""
    if len(peers) == 1:
        return 0.0
    return (own - fmean(peers)) / (stdev(peers) + EPS if divide else 1.0)


def group_relative(*, divide: bool, scale: float = 1.0) -> Plain:
    def estimate(rows: list[Row]) -> Numbers:
        found = []
        for row in rows:
            peers = [scale * sum(r.rewards) for r in rows if r.group == row.group]
            advantage = compared(scale * sum(row.rewards), peers, divide=divide)
            found.append([advantage] * len(row.rewards))
        return found

    return estimate


def leave_one_out(scale: float) -> Plain:
    def estimate(rows: list[Row]) -> Numbers:
        found = []
        for row in rows:
            own = scale * sum(row.rewards)
            others = [scale * sum(r.rewards) for r in rows if r.group == row.group and r is not row]
            found.append([own - fmean(others) if others else 0.0] * len(row.rewards))
        return found

    return estimate


def group_in_group(turn_gamma: float, step_weight: float, *, divide: bool) -> Plain:
    def step_returns(row: Row) -> list[float]:
        earned = row.earned()
        return [discounted(earned[k:], turn_gamma) for k in range(len(earned))]

    def estimate(rows: list[Row]) -> Numbers:
        whole = group_relative(divide=divide)(rows)
        anchors: dict[tuple[int, int], list[float]] = {}
        for row in rows:
            for turn, value in enumerate(step_returns(row)):
                state = row.states[row.places(turn)[0]]
                anchors.setdefault((row.group, state), []).append(value)
        for row, numbers in zip(rows, whole, strict=True):
            own = step_returns(row)
            for t, (turn, state) in enumerate(zip(row.turns, row.states, strict=True)):
                peers = anchors[row.group, state]
                numbers[t] += step_weight * compared(own[turn], peers, divide=divide)
        return whole

    return estimate


def discounted(numbers: list[float], gamma: float) -> float:
    return sum(gamma**k * x for k, x in enumerate(numbers))


def to_go(gamma: float) -> Plain:
    def estimate(rows: list[Row]) -> Numbers:
        return [
            [discounted(row.rewards[t:], gamma) for t in range(len(row.rewards))] for row in rows
        ]

    return estimate


def traced(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Sum (γλ)^k δ over what follows."""
    after = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, after, strict=True)]
    return [discounted(deltas[t:], gamma * lam) for t in range(len(deltas))]


def with_critic(gamma: float, lam: float, scale: float) -> Plain:
    def estimate(rows: list[Row]) -> Numbers:
        return [traced([scale * r for r in row.rewards], row.values, gamma, lam) for row in rows]

    return estimate


def with_critic_of_turns(gamma: float, lam: float, turn_gamma: float, scale: float) -> Plain:
    def estimate(rows: list[Row]) -> Numbers:
        found: Numbers = []
        for row in rows:
            at = [row.places(turn) for turn in range(row.turns[-1] + 1)]
            last = [row.values[places[-1]] for places in at]
            of_turns = traced([scale * r for r in row.earned()], last, turn_gamma, lam)
            found.append([])
            for places, value, advantage in zip(at, last, of_turns, strict=True):
                before = [scale * row.rewards[t] for t in places[:-1]]
                rewards = [*before, advantage + value - sum(before)]
                found[-1] += traced(rewards, [row.values[t] for t in places], gamma, lam)
        return found

    return estimate


def successes_alike(rows: list[Row]) -> Numbers:
    kept = sum(len(r.rewards) for r in rows if r.kept)
    imitated = sum(len(r.rewards) for r in rows if r.kept and r.success)
    return [[kept / max(1, imitated) * r.success] * len(r.rewards) for r in rows]


def whitened(estimate: Plain) -> Plain:
    """Shift and scale to mean 0 and variance 1 over the kept trajectories' tokens; 0 elsewhere."""

    def estimate_and_whiten(rows: list[Row]) -> Numbers:
        numbers = estimate(rows)
        kept = [x for row, own in zip(rows, numbers, strict=True) if row.kept for x in own]
        mean = fmean(kept) if kept else 0.0
        scale = ((stdev(kept) ** 2 if len(kept) > 1 else 0.0) + 1e-8) ** -0.5
        return [
            [(x - mean) * scale * row.kept for x in own]
            for row, own in zip(rows, numbers, strict=True)
        ]

    return estimate_and_whiten
