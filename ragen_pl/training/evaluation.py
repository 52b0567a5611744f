"""Score evaluated trajectories: pure functions of trajectory groups.

Trajectories from different starts of an evaluation set are independent, and success has Wilson's
interval. Where an environment has fewer starts than the evaluation set asks for, they are played
several times. Given the start the tries are independent, since each is sampled with noise of its
own, but they share its difficulty: a hundred tries at one start say much of that start and little
of others. So the interval is that of an effective count: the number of independent trajectories
which would know the share as well. It is the count itself where every start was played once, or
where success does not depend on the start, and as low as the number of starts where the start
decides. Of two or three starts it is a rough guess, and of one it can only be the count: such an
interval is about the starts that were played.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.training.callback import announce
from ragen_pl.types import Evaluation, TrajectoryGroup

NORMAL_95 = 1.959963984540054
"""The standard normal's 97.5 % point."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Summarize an evaluation; trajectories whose environment failed are left out, and starts whose
    first prompt had no room are failures."""

    success: float
    low: float
    """Lower end of success's 95 % Wilson interval, at the effective count (see this module)."""
    high: float
    count: int
    mean_return: float
    thought_accuracy: float | None
    """Share of judged thoughts that were true; None where none was judged."""
    valid_format: float
    """Share of turns; 0 where there was none."""
    by_difficulty: Mapping[str, tuple[float, int]]
    """Success and count per difficulty, in the order of the names; empty without difficulties."""
    solved: tuple[int, ...]
    """Seeds of the starts where success came; a start played several times stands several times."""
    failed: tuple[int, ...]
    left_out: int = 0
    """Trajectories in which the environment failed: where that depends on what is played, success
    among the others flatters or wrongs the policy."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Compare success of two policies on the same starts."""

    mean: float
    low: float
    """Lower end of the mean's 95 % interval."""
    high: float
    count: int
    """Starts."""


def wilson_interval(successes: float, count: float, z: float = NORMAL_95) -> tuple[float, float]:
    """Bound a share by Wilson's score interval; (0, 1) when nothing was counted."""
    if count == 0:
        return 0.0, 1.0
    share = successes / count
    shrink = 1.0 + z * z / count
    center = (share + z * z / (2 * count)) / shrink
    spread = z / shrink * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, center - spread), min(1.0, center + spread)


def effective_count(outcomes: Sequence[Sequence[bool]]) -> float:
    """Count the independent trajectories that would know the share of successes as well.

    N / deff, where the design effect is the share's variance with starts as clusters over that of
    N independent trajectories:

    deff = [K / (K − 1) · Σₖ (sₖ − nₖ p)² / N²] / [p (1 − p) / (N − 1)]

    of K starts with sₖ successes in nₖ tries (Kish 1965; Cochran 1977, §11). It is exactly 1 where
    every start was tried once, and is kept from 1 to N / K: chance may set it lower, and no start
    tells less than one try.

    Args:
        outcomes: Of each start, the successes of its tries.
    """
    starts, count = len(outcomes), sum(map(len, outcomes))
    share = sum(map(sum, outcomes)) / count if count else 0.0
    if starts < 2 or share in (0.0, 1.0):
        return float(count)
    squares = sum((sum(tries) - len(tries) * share) ** 2 for tries in outcomes)
    clustered = starts / (starts - 1) * squares / count**2
    effect = clustered / (share * (1 - share) / (count - 1))
    return count / min(max(effect, 1.0), count / starts)


def score(groups: Sequence[TrajectoryGroup]) -> EvalResult:
    """Score the trajectories of an evaluation that count.

    Raises:
        ValueError: when none does.
    """
    trajectories = [t for group in groups for t in group.trajectories if t.counts]
    if not trajectories:
        raise ValueError(
            f"the environment failed in all trajectories of {len(groups)} evaluated groups: look "
            "for its errors in the log"
        )
    wins = sum(trajectory.success for trajectory in trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    judged = [turn.thought_correct for turn in turns if turn.thought_correct is not None]
    difficulties: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        if trajectory.difficulty:
            difficulties.setdefault(trajectory.difficulty, []).append(trajectory.success)
    starts: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        start = json.dumps(trajectory.initial_state, sort_keys=True)
        starts.setdefault(start, []).append(trajectory.success)
    count = effective_count(list(starts.values()))
    low, high = wilson_interval(wins / len(trajectories) * count, count)
    return EvalResult(
        success=wins / len(trajectories),
        low=low,
        high=high,
        count=len(trajectories),
        mean_return=fmean(trajectory.total_reward for trajectory in trajectories),
        thought_accuracy=fmean(judged) if judged else None,
        valid_format=fmean(turn.is_valid for turn in turns) if turns else 0.0,
        by_difficulty={
            name: (fmean(difficulties[name]), len(difficulties[name]))
            for name in sorted(difficulties)
        },
        solved=tuple(t.seed for t in trajectories if t.success),
        failed=tuple(t.seed for t in trajectories if not t.success),
        left_out=sum(len(group.trajectories) for group in groups) - len(trajectories),
    )


def pass_at_k(count: int, successes: int, k: int) -> float:
    """Estimate without bias the chance that k tries hold a success, from ``count`` ≥ k tries.

    1 − C(count − successes, k) / C(count, k): the share of k-subsets with a success
    (Chen et al., arXiv 2107.03374).
    """
    if not 1 <= k <= count:
        raise ValueError(f"k is {k}; with {count} trajectories per start it must lie in 1..{count}")
    return 1.0 - math.comb(count - successes, k) / math.comb(count, k)


def paired_difference(before: EvalResult, after: EvalResult) -> Difference:
    """Estimate how much more often one policy succeeds than another, start by start.

    Pairing removes the difference in difficulty between starts, which makes the interval
    narrower than that of two separate evaluations. The interval is the normal one around the mean
    of per-start differences; it has no width when all are equal.

    Raises:
        ValueError: when the two were not scored on the same starts. (A start where the environment
            raised for one policy counts as missing there.)
    """
    old, new = _success_by_seed(before), _success_by_seed(after)
    if old.keys() != new.keys():
        odd = sorted(old.keys() ^ new.keys())
        raise ValueError(
            f"the evaluations were not played on the same starts: {len(odd)} seeds are in one "
            f"only (such as {odd[0]}); evaluate both policies on the same evaluation set, with "
            f"the same "
            "evaluation.size (a start at which the environment failed is missing, too)"
        )
    gains = [new[seed] - old[seed] for seed in old]
    mean = fmean(gains)
    half = NORMAL_95 * stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return Difference(mean, mean - half, mean + half, len(gains))


def _success_by_seed(scored: EvalResult) -> dict[int, float]:
    """Average success per seed."""
    outcomes: dict[int, list[float]] = {}
    for seeds, success in ((scored.solved, 1.0), (scored.failed, 0.0)):
        for seed in seeds:
            outcomes.setdefault(seed, []).append(success)
    return {seed: fmean(values) for seed, values in outcomes.items()}


# --- over all ranks -------------------------------------------------------------------------------


def score_of_all_ranks(
    trainer: Trainer, name: str, groups: Sequence[TrajectoryGroup]
) -> EvalResult | None:
    """Score what all ranks played, a start that several played once; every rank must call it.

    Args:
        name: Of what is scored, for the line that says that it cannot be.
        groups: This rank's.

    Returns:
        None where the environment failed throughout: the run goes on without a score.
    """
    played = {group.group_id: group for part in gather_objects(groups) for group in part}
    if not any(t.counts for group in played.values() for t in group.trajectories):
        announce(trainer, f"{name}: no score, the environment failed throughout")
        return None
    return score([played[place] for place in sorted(played)])


def log_evaluation(module: LightningModule, evaluation: Evaluation) -> None:
    """Log the scores of an evaluation set under ``val/<evaluation set>/``; every rank must call
    it."""
    prefix, found = f"val/{evaluation.eval_set}/", module.trainer.callback_metrics
    for name in [name for name in found if name.startswith(prefix)]:
        del found[name]  # Lightning would keep the last ones where there are no new ones
    scored = score_of_all_ranks(module.trainer, evaluation.eval_set, evaluation.groups)
    if scored is None:
        return
    metrics = {
        "success": scored.success,
        "success_low": scored.low,
        "success_high": scored.high,
        "return": scored.mean_return,
        "valid_format": scored.valid_format,
    }
    if scored.thought_accuracy is not None:
        metrics["thought_accuracy"] = scored.thought_accuracy
    module.log_dict(
        {f"{prefix}{name}": value for name, value in metrics.items()},
        on_step=False,
        on_epoch=True,
        batch_size=1,
        add_dataloader_idx=False,
        sync_dist=True,
    )
