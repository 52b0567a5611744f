"""Metrics of a rollout's trajectories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.report.tables import MAX_DIFFICULTIES
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.mixture import groups_by_env
from ragen_pl.rollout.rank_means import RankMeans
from ragen_pl.rollout.tallies import Tallies, sum_tallies, tally_by_difficulty
from ragen_pl.training.access import find_data_module
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.evaluation.success_statistics import pass_at_k
from ragen_pl.training.run_warnings.full_contexts import full_context_warning
from ragen_pl.training.trainer import announce
from ragen_pl.types import FormatFault, StopReason, Trajectory, TrajectoryGroup, Turn

_STOP_REASONS = [each for each in StopReason if each is not StopReason.ENDPOINT_ERROR]
"""Reasons why a trajectory of a rollout ends; a policy behind an endpoint is not trained."""


class RolloutMetrics(RolloutCallback):
    """Success, return and its terms, turns, actions, stop reasons and faults of format of
    trajectories (RAGEN §5).

    ``pass_at_{k}`` is the probability that k tries at an initial state contain a success, for
    k = 2, 4, 8 … up to the group's size. Where the environment names at most ``MAX_DIFFICULTIES``
    difficulties, success and the share of trajectories are also split by them. With a curriculum,
    ``success_uniform`` is success in the environment's own mix of starts. All metrics are averages
    over everything that all ranks played in an iteration, before any filter and before dynamic
    sampling discards groups. Trajectories whose environment failed count only in the shares of stop
    reasons; those whose first prompt did not fit count as failures. In a mixture success, return,
    tokens and valid format are also split by environment, and difficulties are named after it.

    It warns, once in a command, if the context ends most trajectories of a rollout.
    """

    def __init__(self) -> None:
        super().__init__()
        self._averages = RankMeans()
        self._played: Tallies = {}
        self._of_env: dict[str, list[int]] = {}
        """Trajectories and sampled tokens of each environment of a mixture."""
        self._terms: dict[str, float] = defaultdict(float)
        self._counted = 0
        self._collections = 0
        self._tokens = 0
        self._full_is_told = False

    def on_teaching_end(
        self, trainer: Trainer, module: LightningModule, metrics: Mapping[str, float]
    ) -> None:
        """Record what the warm start's teacher measured."""
        self.record({f"teacher/{name}": value for name, value in metrics.items()})

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Reset the counts, which an interrupted rollout may have left behind."""
        self._averages, self._played, self._of_env = RankMeans(), {}, {}
        self._terms, self._counted = defaultdict(float), 0
        self._collections, self._tokens = 0, 0

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Count all trajectories of a collection."""
        self._collections += 1
        for env, own in groups_by_env(groups).items():
            tallies = tally_by_difficulty(own)
            if env:
                tallies = {f"{env}/{name}" if name else name: t for name, t in tallies.items()}
            self._played = sum_tallies((self._played, tallies))
        for group in groups:
            _add_pass_at_k(self._averages, group)
            for trajectory in group.trajectories:
                self._tokens += trajectory.num_sampled_tokens
                _add_stop_reason(self._averages, trajectory)
                if trajectory.counts:
                    self._counted += 1
                    for turn in trajectory.turns:
                        for name, value in turn.rewards.items():
                            self._terms[name] += value
                    _add_trajectory(self._averages, trajectory)
                    if group.env:
                        self._add_to_env(group.env, trajectory)
                    success = float(trajectory.success)
                    self._averages.add("success_uniform", success, weight=group.weight)

    def _add_to_env(self, env: str, trajectory: Trajectory) -> None:
        """Count a trajectory in the metrics of its environment of a mixture."""
        turns, add = trajectory.turns, self._averages.add
        tokens = trajectory.num_sampled_tokens
        add(f"{env}/success", float(trajectory.success))
        add(f"{env}/return", trajectory.total_reward)
        add(f"{env}/tokens", float(tokens))
        add(f"{env}/valid_format", float(sum(turn.is_valid for turn in turns)), len(turns))
        own = self._of_env.setdefault(env, [0, 0])
        own[0] += 1
        own[1] += tokens

    def _env_shares(self) -> dict[str, float]:
        """Return the shares of trajectories and of sampled tokens of each environment of a mixture,
        over all ranks."""
        sums: dict[str, list[int]] = {}
        for part in gather_objects(self._of_env):
            for env, (trajectories, tokens) in part.items():
                own = sums.setdefault(env, [0, 0])
                own[0] += trajectories
                own[1] += tokens
        totals = [max(1, sum(own[place] for own in sums.values())) for place in (0, 1)]
        return {
            f"rollout/{env}/{name}": own[place] / totals[place]
            for env, own in sums.items()
            for place, name in enumerate(("share_of_trajectories", "share_of_tokens"))
        }

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Record the averages over all ranks."""
        means = self._averages.means()
        data = find_data_module(trainer)
        if data is None or not data.starts.chooses_starts:  # the same as success
            means.pop("success_uniform", None)
        else:
            running = data.starts.running_success
            if len(running) <= MAX_DIFFICULTIES:
                self.record({f"rollout/running_success/{name}": p for name, p in running.items()})
        self.record(self._env_shares())
        self.record(_by_difficulty(sum_tallies(gather_objects(self._played))))
        self.record({f"rollout/{name}": value for name, value in means.items()})
        if data is not None:
            self._warn(trainer, data.rollout, means)
        self.record({f"rollout/return/{name}": value for name, value in self._terms_mean().items()})
        self.record(
            {
                "rollout/collections": float(self._collections),
                "rollout/sampled_tokens": float(sum(gather_objects(self._tokens))),
            }
        )

    def _warn(self, trainer: Trainer, rollout: RolloutConfig, means: Mapping[str, float]) -> None:
        share = means.get(f"stop_{StopReason.CONTEXT_FULL}", 0.0)
        told = full_context_warning(share, rollout, self.iteration)
        if told is not None and not self._full_is_told:
            self._full_is_told = True
            announce(trainer, told)

    def _terms_mean(self) -> dict[str, float]:
        """Return the mean sum of each reward term over all trajectories, also over those in which
        it does not apply, so that the terms add up to the return."""
        parts = gather_objects((dict(self._terms), self._counted))
        count = sum(counted for _, counted in parts)
        names = dict.fromkeys(name for terms, _ in parts for name in terms)
        return {name: sum(terms.get(name, 0.0) for terms, _ in parts) / count for name in names}


def _by_difficulty(played: Tallies) -> dict[str, float]:
    """Return the success rate and the share of trajectories of each difficulty that has a name."""
    named = {name: tally for name, tally in played.items() if name}
    if len(named) > MAX_DIFFICULTIES:
        return {}
    total = sum(tally.trials for tally in played.values())
    success = {f"rollout/success_at/{name}": tally.success for name, tally in named.items()}
    return success | {f"rollout/share/{name}": t.trials / total for name, t in named.items()}


def _add_pass_at_k(averages: RankMeans, group: TrajectoryGroup) -> None:
    successes = [trajectory.success for trajectory in group.trajectories if trajectory.counts]
    k = 2
    while k <= len(successes):
        averages.add(f"pass_at_{k}", pass_at_k(len(successes), sum(successes), k))
        k *= 2


def _add_stop_reason(averages: RankMeans, trajectory: Trajectory) -> None:
    for reason in _STOP_REASONS:
        averages.add(f"stop_{reason}", float(trajectory.stop_reason is reason))


def _add_trajectory(averages: RankMeans, trajectory: Trajectory) -> None:
    turns = trajectory.turns
    averages.add("success", float(trajectory.success))
    averages.add("return", trajectory.total_reward)
    averages.add("turns", len(turns))
    averages.add("actions", sum(len(turn.actions) for turn in turns))
    _add_memory(averages, trajectory)
    for fault in FormatFault:
        count = sum(turn.format_fault is fault for turn in turns)
        averages.add(f"fault_{fault}", count, len(turns))
    thoughts: Sequence[bool] = [
        turn.thought_correct for turn in turns if turn.thought_correct is not None
    ]
    if thoughts:
        averages.add("thought_accuracy", sum(thoughts), len(thoughts))
    grounded = [turn.thought_grounding for turn in turns if turn.thought_grounding is not None]
    averages.add("grounding", sum(grounded), len(grounded))


def _add_memory(averages: RankMeans, trajectory: Trajectory) -> None:
    """Add what the memory made of a trajectory."""
    if not trajectory.turns:
        return
    sequences = trajectory.sequences
    averages.add("sequences_per_trajectory", len(sequences))
    averages.add("sequence_length", sum(len(s.token_ids) for s in sequences), len(sequences))
    for sequence in sequences:
        seen = 0
        for answer in sequence.answers:
            seen += len(answer.prompt_ids)
            if isinstance(answer, Turn):
                averages.add("context_tokens", seen)
            else:
                averages.add("summary_length", len(answer.completion.token_ids))
            seen += len(answer.completion.token_ids)
