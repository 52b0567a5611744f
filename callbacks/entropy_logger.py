"""Log how varied the agent's responses are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed import gather_objects
from ragen_pl.hooks import RolloutCallback
from ragen_pl.rollout_stats import Averages, survivors
from ragen_pl.types import Trajectory, TrajectoryGroup, Turn


class EntropyLogger(RolloutCallback):
    """Log the entropy and the lengths of responses: the Echo Trap's early signs (RAGEN §4).

    Entropy is that of the distribution each token was drawn from, in nats, averaged over sampled
    tokens: overall, over the first and the second half of a response (thoughts come first, answers
    last), and per turn. ``distinct_responses`` is the share of different texts among all responses.
    """

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Average over all ranks and record."""
        averages = Averages()
        trajectories = survivors(groups)
        for trajectory in trajectories:
            for index, turn in enumerate(trajectory.turns):
                _count(averages, index, turn)
        metrics = {f"rollout/{name}": value for name, value in averages.means().items()}
        self.record(metrics | {"rollout/distinct_responses": _distinct_share(trajectories)})


def _count(averages: Averages, index: int, turn: Turn) -> None:
    entropies = turn.completion.entropies
    half = len(entropies) // 2
    for name, part in (
        ("entropy", entropies),
        ("entropy_first_half", entropies[:half]),
        ("entropy_second_half", entropies[half:]),
        (f"entropy_turn_{index + 1}", entropies),
    ):
        if part:
            averages.add(name, sum(part), len(part))
    averages.add("response_length", len(entropies))
    averages.add("thought_length", len(turn.thought.split()))
    averages.add("valid_format", float(turn.is_valid))


def _distinct_share(trajectories: Iterable[Trajectory]) -> float:
    """Count different responses over all ranks; digests keep what is sent small."""
    digests = [
        hashlib.blake2b(turn.response.encode(), digest_size=8).digest()
        for trajectory in trajectories
        for turn in trajectory.turns
    ]
    everyone = [digest for part in gather_objects(digests) for digest in part]
    return len(set(everyone)) / len(everyone) if everyone else float("nan")
