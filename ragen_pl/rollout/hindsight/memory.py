"""The memory of hindsight imitation: the run's latest solutions, and batches drawn from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ragen_pl.distributed.batch_sharding import balance_by_tokens
from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.rollout.hindsight.config import HindsightImitation
from ragen_pl.rollout.hindsight.writer import Solution
from ragen_pl.rollout.packing import token_batch
from ragen_pl.types import HindsightBatch, HindsightFacts, TokenRow

_EASE = 0.2
"""Weight of a solution that every member of its group found; one that hardly any found has
1 + this."""


class SolutionMemory:
    """The latest solutions of all ranks, the same on every rank.

    Args:
        config: Size of the memory and of the batches.
        run_seed: Seed of the draws.
    """

    def __init__(self, config: HindsightImitation, run_seed: int) -> None:
        self.config, self.run_seed = config, run_seed
        self._solutions: list[Solution] = []
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._solutions)

    def batches(self, own: Sequence[Solution], iteration: int) -> list[HindsightBatch]:
        """Remember an iteration's solutions and draw its batches; every rank must call it.

        Args:
            own: Solutions of this rank's groups.
            iteration: Iteration that found them.

        Returns:
            This rank's share of each batch; no batches while no solution is known.
        """
        gathered = [solution for part in gather_objects(list(own)) for solution in part]
        fresh = sorted(gathered, key=lambda solution: solution.group_id)
        self._solutions = [*self._solutions, *fresh][-self.config.memory :]
        if not self._solutions:
            return []
        facts = self._facts(fresh)
        generator = torch.Generator().manual_seed(self.run_seed * 1_000_003 + iteration)
        num_fresh = min(len(fresh), len(self._solutions))
        return [_batch(self._draw(num_fresh, generator), facts) for _ in range(self.config.updates)]

    def _facts(self, fresh: Sequence[Solution]) -> HindsightFacts:
        ratio = None
        if fresh:
            sampled = sum(solution.fewest_sampled for solution in fresh)
            ratio = sum(solution.num_actions for solution in fresh) / sampled
        return HindsightFacts(len(fresh), len(self), ratio)

    def _draw(self, num_fresh: int, generator: torch.Generator) -> list[TokenRow]:
        """Return one training sequence of each drawn solution: first of fresh ones, then of all.
        Neither draw takes a solution twice, so that few solutions make a small batch."""
        wanted = min(self.config.batch_size, len(self._solutions))
        from_fresh = min(round(wanted * self.config.fresh), num_fresh)
        latest = self._solutions[len(self._solutions) - num_fresh :]
        chosen = _choose(latest, from_fresh, generator)
        chosen += _choose(self._solutions, wanted - from_fresh, generator)
        return [
            solution.rows[int(torch.randint(len(solution.rows), (), generator=generator))]
            for solution in chosen
        ]

    def forget_since(self, iteration: int) -> None:
        """Forget what was found from an iteration on, as by a policy that was rolled back."""
        self._solutions = [s for s in self._solutions if s.iteration < iteration]

    def state_dict(self) -> dict[str, Any]:
        """Return the memory as tensors and numbers."""
        rows = [row for solution in self._solutions for row in solution.rows]
        return {
            "solutions": [
                (
                    *(s.iteration, s.group_id, len(s.rows)),
                    *(s.success_rate, s.num_actions, s.fewest_sampled),
                )
                for s in self._solutions
            ],
            "lengths": [len(row.token_ids) for row in rows],
            "token_ids": _flat([row.token_ids for row in rows], torch.int32),
            "loss_mask": _flat([row.loss_mask for row in rows], torch.bool),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a memory; of one that is larger than ``config.memory`` the latest."""
        ids = state["token_ids"].split(state["lengths"])
        masks = state["loss_mask"].split(state["lengths"])
        rows = [
            TokenRow(tuple(row.tolist()), tuple(mask.tolist()))
            for row, mask in zip(ids, masks, strict=True)
        ]
        solutions, at = [], 0
        for iteration, group_id, num_rows, *facts in state["solutions"]:
            own = tuple(rows[at : at + num_rows])
            solutions.append(Solution(iteration, group_id, own, *facts))
            at += num_rows
        self._solutions = solutions[-self.config.memory :]


def _choose(
    solutions: Sequence[Solution], count: int, generator: torch.Generator
) -> list[Solution]:
    """Draw different solutions, the harder ones more often."""
    if not count:
        return []
    weights = torch.tensor([1.0 - s.success_rate + _EASE for s in solutions], dtype=torch.float64)
    drawn = torch.multinomial(weights, count, generator=generator)
    return [solutions[index] for index in drawn.tolist()]


def _batch(rows: Sequence[TokenRow], facts: HindsightFacts) -> HindsightBatch:
    """Pack this rank's share of the rows, dealt evenly by tokens."""
    tokens = token_batch(rows)
    is_own = balance_by_tokens(tokens.lengths, world_size()) == rank()
    return HindsightBatch.of(tokens.rows(is_own), facts=facts)


def _flat(rows: Sequence[Sequence[int]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([number for row in rows for number in row], dtype=dtype)
