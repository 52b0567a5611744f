"""Make up collections in float64: groups of every size, turns of every length, states met again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from ragen_pl.rollout.packing import pack
from ragen_pl.types import Completion, RolloutBatch, Summary, Trajectory, Turn
from tests.support.doubles import make_trajectory, make_turn

SIZES = (3, 2, 1, 2)
"""Members of the groups: one that is alone among them."""
WORDS = 11


def trajectories(seed: int, sizes: Sequence[int] = SIZES, context: int = 2) -> list[Trajectory]:
    """Draw trajectories of one to three turns.

    Args:
        sizes: Members of each group.
        context: Tokens that the environment says before each turn.
    """
    draw, observe = Random(seed), Random(-seed)
    members = []
    for group, size in enumerate(sizes):
        for member in range(size):
            turns = []
            for number in range(draw.randint(1, 3)):
                length = draw.randint(1, 3)
                sampled = tuple(draw.randrange(WORDS) for _ in range(length))
                turn = make_turn(draw.choice([0.0, draw.uniform(-2, 2)]))
                turns.append(
                    replace(
                        turn,
                        prompt_ids=tuple(observe.randrange(WORDS) for _ in range(context)),
                        completion=Completion(sampled, (-0.5,) * length, (0.5,) * length, True),
                        anchor_key=draw.choice("ab") if number else "start",
                    )
                )
            success = draw.random() < 0.5
            members.append(make_trajectory(turns, group_id=group, member=member, success=success))
    return members


def with_cuts(drawn: Sequence[Trajectory], seed: int) -> list[Trajectory]:
    """Cut contexts before some of the turns, some of them after a summary; the sampled tokens of
    turns stay as they are."""
    draw = Random(seed)

    def after(turn: Turn) -> Turn:
        if draw.random() < 0.3:
            return turn
        summary = None
        if draw.random() < 0.4:
            sampled = tuple(draw.randrange(WORDS) for _ in range(draw.randint(1, 3)))
            known = (-0.5,) * len(sampled)
            completion = Completion(sampled, known, known, True)
            summary = Summary((1, 2), completion, f"summary: {turn.anchor_key}", "?", "")
        past = tuple(draw.randrange(WORDS) for _ in range(draw.randint(0, 4)))
        return replace(
            turn, prompt_ids=past + turn.prompt_ids, begins_sequence=True, summary=summary
        )

    return [replace(t, turns=(t.turns[0], *map(after, t.turns[1:]))) for t in drawn]


def collection(
    seed: int, sizes: Sequence[int] = SIZES, context: int = 2, *, cuts: bool = False
) -> RolloutBatch:
    """Pack made-up trajectories; some are dropped and some weigh less."""
    drawn = trajectories(seed, sizes, context)
    drawn = with_cuts(drawn, seed) if cuts else drawn
    weights = [Random(seed + row).choice([0.0, 0.5, 1.0, 1.0]) for row in range(len(drawn))]
    rollout = pack(drawn, weights=weights)
    return replace(rollout, rewards=rollout.rewards.double())


def at_tokens(rollout: RolloutBatch, seed: int) -> Tensor:
    """Draw a number for each sampled token, the same whatever stands between them; (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(int(rollout.loss_mask.sum()), generator=generator, dtype=torch.float64)
    return torch.zeros_like(rollout.rewards).masked_scatter(rollout.loss_mask, drawn)


def draws(rollout: RolloutBatch, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw log-probs, old ones that may be far away, and advantages, each (B, T)."""
    new = at_tokens(rollout, seed) - 2.0
    far = at_tokens(rollout, seed + 1)
    return new, new + far * far.abs(), at_tokens(rollout, seed + 2)


def padded(rollout: RolloutBatch, columns: int) -> RolloutBatch:
    """Pad to the right, as a longer row elsewhere in the batch would."""
    return rollout._map(
        lambda value: torch.nn.functional.pad(value, (0, columns)) if value.ndim == 2 else value
    )
