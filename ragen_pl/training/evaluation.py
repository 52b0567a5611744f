"""Evaluation results: success with confidence intervals, pass@k and paired differences.

Trajectories from different initial states of an evaluation set are independent, and success has
Wilson's score interval. If an environment has fewer initial states than the evaluation set's size,
states are played several times. Repetitions have independent sampling noise but share the state's
difficulty: a hundred repetitions of one state say little about other states. The interval therefore
uses an effective sample size, the number of independent trajectories that would estimate the
success rate equally well. It equals the number of trajectories if every state was played once or
success does not depend on the state, and falls to the number of states if the state alone decides.
With two or three states it is a rough estimate. With one state it can only be the number of
trajectories, and the interval holds for that state alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.training.callback import announce
from ragen_pl.types import Evaluation, TrajectoryGroup

NORMAL_95 = 1.959963984540054
"""The standard normal's 97.5 % point."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Summary of an evaluation.

    Trajectories whose environment failed are excluded. An initial state whose first prompt does not
    fit the context counts as a failure.
    """

    success: float
    low: float
    """Lower end of success's 95 % Wilson interval, at the effective sample size (see this
    module)."""
    high: float
    count: int
    mean_return: float
    thought_accuracy: float | None
    """Fraction of checked thoughts that were correct; None if none was checked."""
    valid_format: float
    """Fraction of turns with a valid format; 0 without turns."""
    by_difficulty: Mapping[str, tuple[float, int]]
    """Success and count per difficulty, in alphabetical order; empty without difficulties."""
    solved_seeds: tuple[int, ...]
    """Seeds of the successful trajectories, one per trajectory."""
    failed_seeds: tuple[int, ...]
    env_errors: int = 0
    """Number of trajectories in which the environment failed. If failures depend on the actions of
    the policy, success over the other trajectories is biased."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in success of two policies on the same initial states."""

    mean: float
    low: float
    """Lower end of the mean's 95 % interval."""
    high: float
    count: int
    """Number of initial states."""


def wilson_interval(successes: float, count: float, z: float = NORMAL_95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion; (0, 1) for a count of 0."""
    if count == 0:
        return 0.0, 1.0
    share = successes / count
    shrink = 1.0 + z * z / count
    center = (share + z * z / (2 * count)) / shrink
    spread = z / shrink * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, center - spread), min(1.0, center + spread)


def effective_sample_size(outcomes: Sequence[Sequence[bool]]) -> float:
    """Return the number of independent trajectories that estimate the success rate equally well.

    N / deff, where the design effect is the variance of the success rate with initial states as
    clusters over that of N independent trajectories:

    deff = [K / (K − 1) · Σₖ (sₖ − nₖ p)² / N²] / [p (1 − p) / (N − 1)]

    for K initial states with sₖ successes in nₖ trajectories (Kish 1965; Cochran 1977, §11). It is
    exactly 1 if every state was played once. It is clamped to [1, N / K], because values below 1
    are chance and each state is worth at least one trajectory.

    Args:
        outcomes: Success of each trajectory, by initial state.
    """
    num_starts, count = len(outcomes), sum(map(len, outcomes))
    share = sum(map(sum, outcomes)) / count if count else 0.0
    if num_starts < 2 or share in (0.0, 1.0):
        return float(count)
    squares = sum((sum(each) - len(each) * share) ** 2 for each in outcomes)
    clustered = num_starts / (num_starts - 1) * squares / count**2
    design_effect = clustered / (share * (1 - share) / (count - 1))
    return count / min(max(design_effect, 1.0), count / num_starts)


def summarize(groups: Sequence[TrajectoryGroup]) -> EvalResult:
    """Summarize the trajectories of an evaluation.

    Raises:
        ValueError: when the environment failed in all of them.
    """
    trajectories = [t for group in groups for t in group.trajectories if t.counts]
    if not trajectories:
        raise ValueError(
            f"the environment failed in all trajectories of {len(groups)} evaluated groups: see "
            "the log for its errors"
        )
    num_successes = sum(trajectory.success for trajectory in trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    thoughts = [turn.thought_correct for turn in turns if turn.thought_correct is not None]
    by_difficulty: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        if trajectory.difficulty:
            by_difficulty.setdefault(trajectory.difficulty, []).append(trajectory.success)
    by_start: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        start = json.dumps(trajectory.initial_state, sort_keys=True)
        by_start.setdefault(start, []).append(trajectory.success)
    effective = effective_sample_size(list(by_start.values()))
    low, high = wilson_interval(num_successes / len(trajectories) * effective, effective)
    return EvalResult(
        success=num_successes / len(trajectories),
        low=low,
        high=high,
        count=len(trajectories),
        mean_return=fmean(trajectory.total_reward for trajectory in trajectories),
        thought_accuracy=fmean(thoughts) if thoughts else None,
        valid_format=fmean(turn.is_valid for turn in turns) if turns else 0.0,
        by_difficulty={
            name: (fmean(by_difficulty[name]), len(by_difficulty[name]))
            for name in sorted(by_difficulty)
        },
        solved_seeds=tuple(t.seed for t in trajectories if t.success),
        failed_seeds=tuple(t.seed for t in trajectories if not t.success),
        env_errors=sum(len(group.trajectories) for group in groups) - len(trajectories),
    )


def pass_at_k(count: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from ``count`` ≥ k trajectories of one initial state.

    1 − C(count − successes, k) / C(count, k): the fraction of k-subsets with a success
    (Chen et al., arXiv 2107.03374).
    """
    if not 1 <= k <= count:
        raise ValueError(f"k is {k}; with {count} trajectories per start it must lie in 1..{count}")
    return 1.0 - math.comb(count - successes, k) / math.comb(count, k)


def paired_difference(before: EvalResult, after: EvalResult) -> Difference:
    """Estimate the difference in success of two policies, paired by initial state.

    Pairing removes the variation in difficulty between initial states, which makes the interval
    narrower than that of two separate evaluations. It is the normal interval of the mean of the
    differences per state, and has width zero when all are equal.

    Raises:
        ValueError: when the two evaluations have different initial states. (One at which the
            environment failed for a policy is missing from that policy's evaluation.)
    """
    old, new = _success_by_seed(before), _success_by_seed(after)
    if old.keys() != new.keys():
        unpaired = sorted(old.keys() ^ new.keys())
        raise ValueError(
            f"the evaluations were not played on the same starts: {len(unpaired)} seeds are in "
            f"only one (such as {unpaired[0]}); evaluate both policies on the same evaluation set "
            "with the same evaluation.size (a start at which the environment failed is missing, "
            "too)"
        )
    gains = [new[seed] - old[seed] for seed in old]
    mean = fmean(gains)
    half_width = NORMAL_95 * stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return Difference(mean, mean - half_width, mean + half_width, len(gains))


def _success_by_seed(result: EvalResult) -> dict[int, float]:
    """Average success per seed."""
    outcomes: dict[int, list[float]] = {}
    for seeds, success in ((result.solved_seeds, 1.0), (result.failed_seeds, 0.0)):
        for seed in seeds:
            outcomes.setdefault(seed, []).append(success)
    return {seed: fmean(values) for seed, values in outcomes.items()}


# --- over all ranks -------------------------------------------------------------------------------


def summarize_all_ranks(
    trainer: Trainer, name: str, groups: Sequence[TrajectoryGroup]
) -> EvalResult | None:
    """Summarize the trajectories of all ranks; every rank must call it.

    An initial state that several ranks played counts once.

    Args:
        name: Name of policy and evaluation set, for the message.
        groups: Groups of this rank.

    Returns:
        None, with a message, if the environment failed in every trajectory; the run then continues
        without this result.
    """
    played = {group.group_id: group for part in gather_objects(groups) for group in part}
    if not any(t.counts for group in played.values() for t in group.trajectories):
        text = f"{name}: no result, the environment failed in every trajectory"
        record_fault(FaultKind.EVALUATION, text)
        announce(trainer, text)
        return None
    return summarize([played[group_id] for group_id in sorted(played)])


def log_evaluation(module: LightningModule, evaluation: Evaluation) -> None:
    """Log an evaluation set's result under ``val/<evaluation set>/``; every rank must call it."""
    prefix, logged = f"val/{evaluation.eval_set}/", module.trainer.callback_metrics
    for name in [name for name in logged if name.startswith(prefix)]:
        del logged[name]  # Lightning would keep the last values if there are no new ones
    result = summarize_all_ranks(module.trainer, evaluation.eval_set, evaluation.groups)
    if result is None:
        return
    metrics = {
        "success": result.success,
        "success_low": result.low,
        "success_high": result.high,
        "return": result.mean_return,
        "valid_format": result.valid_format,
    }
    if result.thought_accuracy is not None:
        metrics["thought_accuracy"] = result.thought_accuracy
    module.log_dict(
        {f"{prefix}{name}": value for name, value in metrics.items()},
        on_step=False,
        on_epoch=True,
        batch_size=1,
        add_dataloader_idx=False,
        sync_dist=True,
    )
