"""Metrics of how varied the agent's responses are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.rollout.rank_means import RankMeans
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import TrajectoryGroup, Turn, trainable_trajectories

NGRAM_TOKENS = 4
"""Tokens in a row that count as repeated if they occur twice in a response."""


class EntropyLogger(RolloutCallback):
    """Metrics of entropy and response length: the Echo Trap's early signs (RAGEN §4).

    ``entropy`` is that of the distribution from which each token was sampled, in nats, averaged
    over tokens: overall, over the first and the second half of a response (thoughts come first,
    answers last), and per turn. ``distinct_responses`` and ``distinct_thoughts`` are the shares of
    different texts among all; ``distinct_responses_in_group`` is that share among the first
    responses of a group, which all answer the same prompt, averaged over groups.
    ``duplicate_responses`` and ``duplicate_responses_in_group`` are the shares of responses with an
    equal one, among all and among those of a group; ``repeated_ngrams`` is the share of the 4-grams
    of tokens that occurred before in the same response.
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
            if len(first) > 1:
                averages.add("duplicate_responses_in_group", duplicate_share(first))
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        responses = _digests(turn.response for turn in turns)
        thoughts = _digests(turn.thought for turn in turns if turn.thought)
        metrics = averages.means() | {
            "distinct_responses": _distinct_share(responses),
            "distinct_thoughts": _distinct_share(thoughts),
            "duplicate_responses": duplicate_share(responses),
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
    repeated, count = repeated_ngrams(turn.completion.token_ids)
    averages.add("repeated_ngrams", repeated, count)
    averages.add("response_length", len(entropies))
    averages.add("thought_length", len(turn.thought.split()))
    averages.add("valid_format", float(turn.is_valid))


def _digests(texts: Iterable[str]) -> list[bytes]:
    """Return short digests of the texts of all ranks."""
    own = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return [digest for part in gather_objects(own) for digest in part]


def _distinct_share(items: Sequence[Hashable]) -> float:
    """Return the share of distinct items; NaN without any."""
    return len(set(items)) / len(items) if items else float("nan")


def duplicate_share(items: Sequence[Hashable]) -> float:
    """Return the share of items that are equal to another one; NaN without any."""
    repeated = sum(count for count in Counter(items).values() if count > 1)
    return repeated / len(items) if items else float("nan")


def repeated_ngrams(tokens: Sequence[int]) -> tuple[int, int]:
    """Count the n-grams of a response that occurred earlier in it, and all of its n-grams."""
    starts = range(len(tokens) - NGRAM_TOKENS + 1)
    ngrams = [tuple(tokens[start : start + NGRAM_TOKENS]) for start in starts]
    return len(ngrams) - len(set(ngrams)), len(ngrams)
