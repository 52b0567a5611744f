"""Metrics of how varied the agent's responses are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.rollout.stats import RankMeans, trainable_trajectories
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import TrajectoryGroup, Turn


class EntropyLogger(RolloutCallback):
    """Metrics of entropy and response length: the Echo Trap's early signs (RAGEN §4).

    ``entropy`` is that of the distribution from which each token was sampled, in nats, averaged
    over tokens: overall, over the first and the second half of a response (thoughts come first,
    answers last), and per turn. ``distinct_responses`` and ``distinct_thoughts`` are the shares of
    different texts among all; ``distinct_responses_in_group`` is that share among the first
    responses of a group, which all answer the same prompt, averaged over groups.
    """

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Record the averages over all ranks."""
        averages = RankMeans()
        trajectories = trainable_trajectories(groups)
        for trajectory in trajectories:
            for index, turn in enumerate(trajectory.turns):
                _add_turn(averages, index, turn)
                ending = "success" if trajectory.success else "failure"
                averages.add(f"thought_length_{ending}", len(turn.thought.split()))
        for group in groups:
            first = [t.turns[0].response for t in trainable_trajectories([group])]
            if first:
                averages.add("distinct_responses_in_group", len(set(first)) / len(first))
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        metrics = averages.means() | {
            "distinct_responses": _distinct_fraction(turn.response for turn in turns),
            "distinct_thoughts": _distinct_fraction(turn.thought for turn in turns if turn.thought),
        }
        self.record({f"rollout/{name}": value for name, value in metrics.items()})


def _add_turn(averages: RankMeans, index: int, turn: Turn) -> None:
    entropies = turn.completion.entropy_estimates
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


def _distinct_fraction(texts: Iterable[str]) -> float:
    """Return the share of distinct texts over all ranks, which exchange short digests only."""
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    gathered = [digest for part in gather_objects(digests) for digest in part]
    return len(set(gathered)) / len(gathered) if gathered else float("nan")
