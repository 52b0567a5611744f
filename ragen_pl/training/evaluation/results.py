"""Evaluation results: success with confidence intervals, pass@k, and actions against the optimum.

Success is the mean over distinct initial states (by ``start_key``), each of which counts once: if
an environment has fewer than the evaluation set's size, some are played more often than others.
States are independent, and success has Wilson's score interval. Repetitions of a state have
independent sampling noise but share its difficulty: a hundred of them say little about other
states. The interval therefore uses an effective sample size, the number of independent trajectories
that would estimate the success rate equally well. It is the number of states if each was played
once or the state alone decides, or if all trajectories succeed or all fail, and rises to the number
of trajectories if success does not depend on the state. With two or three states it is a rough
estimate. With one state, and with fewer than ten of which all trajectories succeed or all fail, it
can only be the number of trajectories, and the interval holds for those states alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.runtime.faults import FaultKind, record_shared_fault
from ragen_pl.training.evaluation.success_statistics import (
    effective_sample_size,
    mean_over_starts,
    pass_at_k,
    wilson_interval,
)
from ragen_pl.training.trainer import announce
from ragen_pl.types import Evaluation, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Summary of an evaluation.

    Trajectories whose environment failed are excluded. An initial state whose first prompt does not
    fit the context counts as a failure.
    """

    success: float
    """Mean over the distinct initial states of each one's share of solved trajectories."""
    low: float
    """Lower end of success's 95 % Wilson interval, at the effective sample size (see this
    module)."""
    high: float
    count: int
    """Number of trajectories."""
    mean_return: float
    """Mean over the distinct initial states, as success."""
    thought_accuracy: float | None
    """Fraction of checked thoughts that were correct; None if none was checked."""
    valid_format: float
    """Fraction of turns with a valid format; 0 without turns."""
    by_difficulty: Mapping[str, tuple[float, int]]
    """Success and number of distinct initial states per difficulty, in alphabetical order; empty
    without difficulties."""
    solved_seeds: tuple[int, ...]
    """Seeds of the successful trajectories, one per trajectory."""
    failed_seeds: tuple[int, ...]
    env_errors: int = 0
    """Number of trajectories in which the environment failed. If failures depend on the actions of
    the policy, success over the other trajectories is biased."""
    pass_at: Mapping[int, float] = field(default_factory=dict)
    """Unbiased estimate of pass@k by k, averaged over initial states; k is 1, 2, 4 … and the number
    of trajectories per initial state."""
    repeated_seeds: Mapping[int, int] = field(default_factory=dict)
    """Seeds whose initial state another seed of the evaluation set has too (equal ``start_key``),
    each with the smallest seed of that state."""
    action_ratio: float | None = None
    """Mean, over solved trajectories, of the actions used over the fewest possible; None where the
    environment does not know these, or nothing was solved."""

    @property
    def num_starts(self) -> int:
        """Number of distinct initial states."""
        seeds = (*self.solved_seeds, *self.failed_seeds)
        return len({self.repeated_seeds.get(seed, seed) for seed in seeds})


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Evaluation result of one policy on one evaluation set at one temperature."""

    policy: str
    """``random``, ``expert``, ``untrained``, ``warm-started`` or ``final``; in an evaluation by
    itself a checkpoint, a folder or a model's name."""
    eval_set: str
    temperature: float | None
    """None for the baselines, random actions and the expert."""
    result: EvalResult
    iterations: int | None = None
    """Training iterations of the policy; None for baselines and for policies made elsewhere."""
    fingerprint: str | None = None
    """Fingerprint of the evaluation set; None in results of earlier versions."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        difficulties = {name: list(value) for name, value in self.result.by_difficulty.items()}
        return {
            "policy": self.policy,
            "eval_set": self.eval_set,
            "temperature": self.temperature,
            "iterations": self.iterations,
            "fingerprint": self.fingerprint,
            **asdict(self.result),
            "by_difficulty": difficulties,
            "pass_at": {str(k): value for k, value in self.result.pass_at.items()},
            "repeated_seeds": {str(k): seed for k, seed in self.result.repeated_seeds.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyResult:
        """Read the output of ``to_dict``, of this version or an earlier one."""
        own = ("policy", "eval_set", "temperature", "iterations", "fingerprint")
        rest = {name: value for name, value in data.items() if name not in own}
        difficulties = {
            name: (float(success), int(count))
            for name, (success, count) in rest.pop("by_difficulty").items()
        }
        pass_at = {int(k): float(value) for k, value in rest.pop("pass_at", {}).items()}
        repeated = {int(k): int(seed) for k, seed in rest.pop("repeated_seeds", {}).items()}
        solved, failed = tuple(rest.pop("solved_seeds")), tuple(rest.pop("failed_seeds"))
        result = EvalResult(
            **rest,
            by_difficulty=difficulties,
            solved_seeds=solved,
            failed_seeds=failed,
            pass_at=pass_at,
            repeated_seeds=repeated,
        )
        known = {name: data[name] for name in own if name in data}
        return cls(result=result, **known)


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
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    thoughts = [turn.thought_correct for turn in turns if turn.thought_correct is not None]
    by_start = _by_start(trajectories)
    outcomes = [[t.success for t in played] for played in by_start]
    success, effective = mean_over_starts(outcomes), effective_sample_size(outcomes)
    low, high = wilson_interval(success * effective, effective)
    return EvalResult(
        success=success,
        low=low,
        high=high,
        count=len(trajectories),
        mean_return=mean_over_starts([[t.total_reward for t in played] for played in by_start]),
        thought_accuracy=fmean(thoughts) if thoughts else None,
        valid_format=fmean(turn.is_valid for turn in turns) if turns else 0.0,
        by_difficulty=_by_difficulty(trajectories),
        solved_seeds=tuple(t.seed for t in trajectories if t.success),
        failed_seeds=tuple(t.seed for t in trajectories if not t.success),
        env_errors=sum(len(group.trajectories) for group in groups) - len(trajectories),
        pass_at=_pass_at(groups),
        repeated_seeds=_repeated_seeds(groups),
        action_ratio=_action_ratio(trajectories),
    )


def _by_start(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Return the trajectories of each distinct initial state."""
    found: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        found[trajectory.start_key].append(trajectory)
    return list(found.values())


def _by_difficulty(trajectories: Sequence[Trajectory]) -> dict[str, tuple[float, int]]:
    """Return success and the number of distinct initial states by difficulty."""
    found = dict[str, tuple[float, int]]()
    for name in sorted({t.difficulty for t in trajectories if t.difficulty}):
        by_start = _by_start([t for t in trajectories if t.difficulty == name])
        outcomes = [[t.success for t in played] for played in by_start]
        found[name] = mean_over_starts(outcomes), len(outcomes)
    return found


def _repeated_seeds(groups: Sequence[TrajectoryGroup]) -> dict[int, int]:
    """Return the smallest seed of the same initial state, by seed; initial states that only one
    seed has are left out."""
    seeds_of: defaultdict[str, set[int]] = defaultdict(set)
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.start_key:  # unknown where the reset failed
                seeds_of[trajectory.start_key].add(trajectory.seed)
    return {seed: min(seeds) for seeds in seeds_of.values() if len(seeds) > 1 for seed in seeds}


def _pass_at(groups: Sequence[TrajectoryGroup]) -> dict[int, float]:
    """Return pass@k by k: 1, 2, 4 … and the number of trajectories per initial state.

    Seeds of one initial state are averaged first. Seeds at which the environment failed so often
    that fewer than k trajectories are left do not count for that k.
    """
    counts = [[t for t in group.trajectories if t.counts] for group in groups]
    most = max(map(len, counts), default=0)
    wanted = [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
    found = dict[int, float]()
    for k in wanted:
        by_start: defaultdict[str, list[float]] = defaultdict(list)
        for each in counts:
            if len(each) >= k:
                chance = pass_at_k(len(each), sum(t.success for t in each), k)
                by_start[each[0].start_key].append(chance)
        found[k] = mean_over_starts(list(by_start.values()))
    return found


def _action_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the mean, over solved trajectories, of the actions used over the fewest possible."""
    ratios = [
        sum(len(turn.actions) for turn in trajectory.turns) / trajectory.optimal_length
        for trajectory in trajectories
        if trajectory.success and trajectory.optimal_length
    ]
    return fmean(ratios) if ratios else None


def readable_evaluations(results: Mapping[str, Any]) -> tuple[list[PolicyResult], int]:
    """Return the evaluations in the content of a ``results.json``, and how many entries another
    version wrote in a form that cannot be read."""
    found, num_unreadable = list[PolicyResult](), 0
    entries = results.get("evaluations")
    for entry in entries if isinstance(entries, list) else ():
        try:
            found.append(PolicyResult.from_dict(entry))
        except (KeyError, TypeError, ValueError, AttributeError):
            num_unreadable += 1
    return found, num_unreadable


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
        record_shared_fault(FaultKind.EVALUATION, text)
        announce(trainer, text)
        return None
    return summarize([played[group_id] for group_id in sorted(played)])


def log_evaluation(module: LightningModule, evaluation: Evaluation) -> None:
    """Log an evaluation set's result under ``val/<evaluation set>/``; every rank must call it."""
    prefix, logged = f"val/{evaluation.eval_set}/", module.trainer.callback_metrics
    for name in [name for name in logged if name.startswith(prefix)]:
        del logged[name]  # Lightning would keep the last values if there are no new ones
    result = summarize_all_ranks(module.trainer, evaluation.eval_set, evaluation.groups)
    if result is not None:
        log_metrics(module, {f"{prefix}{name}": v for name, v in metrics_of(result).items()})


def metrics_of(result: EvalResult) -> dict[str, float]:
    """Return the metrics of a result that are known, by the names under which they are logged."""
    metrics: dict[str, float | None] = {
        "success": result.success,
        "success_low": result.low,
        "success_high": result.high,
        "return": result.mean_return,
        "valid_format": result.valid_format,
        "thought_accuracy": result.thought_accuracy,
        "action_ratio": result.action_ratio,
        **{f"pass_at_{k}": value for k, value in result.pass_at.items() if k > 1},
    }
    return {name: value for name, value in metrics.items() if value is not None}


def log_metrics(module: LightningModule, metrics: Mapping[str, float]) -> None:
    """Log metrics of an evaluation, which are equal on all ranks."""
    module.log_dict(
        dict(metrics),
        on_step=False,
        on_epoch=True,
        batch_size=1,
        add_dataloader_idx=False,
        sync_dist=True,
    )
