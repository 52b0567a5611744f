"""The choice of groups that the policy learns from, by the spread of their returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ragen_pl.algorithms.filters import FilterRule, TopFraction
from ragen_pl.ops.selection import Order, group_mean, max_variance_subset, ranking
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import announce
from ragen_pl.types import Selection, TrajectoryGroup

Score = Literal["std", "variance", "mean", "length", "entropy"]
Scaling = Literal["none", "linear", "sqrt"]

_SCORES: dict[Score, Callable[[GroupTable], Tensor]] = {
    "std": lambda table: table.std,
    "variance": lambda table: table.std.square(),
    "mean": lambda table: group_mean(table.returns, table.valid),
    "length": lambda table: group_mean(table.lengths, table.valid),
    "entropy": lambda table: group_mean(table.entropies, table.valid),
}
_SCORE_NAMES: dict[Score, str] = {
    "std": "standard deviation",
    "variance": "variance",
    "mean": "mean return",
    "length": "mean tokens",
    "entropy": "mean entropy",
}
_EMPTY = 3
"""Rollouts in a row without a kept group, after which a warning is printed."""
_SCALING_EXPONENTS: dict[Scaling, float] = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}
"""Exponent of the share of groups kept, in the factor of the policy loss."""


class VarianceFilter(RolloutCallback):
    """StarPO-S's trajectory filter: the policy learns from the most uncertain groups (RAGEN §4).

    A group's score is the standard deviation of its members' returns; the groups with the highest
    scores are kept, chosen over all ranks. In a mixture, groups compete within their environment.
    Whether the critic learns from the others too is its own key, ``critic.train_on``. ``rule`` and
    ``score`` select other filters (RAGEN-2, arXiv 2604.06268: top-p over variances).

    Args:
        keep_fraction: Share of groups to keep; 1 keeps every group. Must be null if ``rule`` is
            given, which replaces it.
        include_zero: Whether groups whose members all got the same return, up to rounding, may be
            kept.
        rule: The rule that selects or weighs groups by their scores: a class of
            ``ragen_pl.algorithms.filters`` (TopFraction, TopK, TopP, SoftmaxTopP, MinP,
            PercentileBand, SoftWeights).
        score: The score of a group: the spread of its members' returns (std or variance), their
            mean return, mean sampled tokens, or mean entropy per token.
        keep_per_group: Members kept of a kept group, those whose returns vary most; null for all.
            Their advantages are still relative to the whole group's mean, the better baseline.
        loss_scaling: How the policy loss shrinks with the share of groups kept: linear is RAGEN-2's
            factor, sqrt its root.
    """

    def __init__(
        self,
        keep_fraction: float | None = 0.25,
        include_zero: bool = False,
        rule: FilterRule | None = None,
        score: Score = "std",
        keep_per_group: int | None = None,
        loss_scaling: Scaling = "none",
    ) -> None:
        super().__init__()
        self.rule = self._configured = _active_rule(keep_fraction, rule)
        if keep_per_group is not None and keep_per_group < 2:
            raise ValueError(
                f"keep_per_group is {keep_per_group}; it must be at least 2 (fewer have no "
                "spread), or null to keep all"
            )
        if score == "mean" and self.rule is not None and self.rule.compares_sizes:
            raise ValueError(
                f"score is {score}, which may be negative, but {type(self.rule).__name__} compares "
                "sizes: choose TopFraction, TopK, SoftmaxTopP or PercentileBand, or another score"
            )
        self._empty = 0
        self.include_zero = include_zero
        self.score: Score = score
        self.keep_per_group = keep_per_group
        self.loss_scaling: Scaling = loss_scaling

    @property
    def has_keep_fraction(self) -> bool:
        """Whether a share of groups is kept, which ``tighten`` can lower."""
        return self._configured is None or isinstance(self._configured, TopFraction)

    def tighten(self, factor: float) -> float:
        """Keep only ``factor`` times the configured share of groups; 1 restores that share.

        Returns:
            The share kept from now on.
        """
        assert self.has_keep_fraction
        assert 0.0 < factor <= 1.0
        whole = self._configured or TopFraction(1.0)
        assert isinstance(whole, TopFraction)
        tightened = replace(whole, fraction=whole.fraction * factor)
        self.rule = self._configured if factor == 1.0 else tightened
        return tightened.fraction

    def check_run(self, trainer: Trainer, rollout: RolloutConfig) -> None:
        """Refuse groups of one: they have no spread, so nothing would ever be kept.

        Raises:
            ValueError: if groups have one member and the filter needs their spread, or if
                ``keep_per_group`` would change nothing.
        """
        needs_spread = self.score in ("std", "variance") or not self.include_zero
        if rollout.group_size == 1 and self.rule is not None and needs_spread:
            raise ValueError(
                "rollout.group_size is 1, but VarianceFilter ranks groups by the spread of their "
                "members' returns: set rollout.group_size to 2 or more, or keep_fraction to 1.0"
            )
        if self.keep_per_group is not None and self.keep_per_group >= rollout.group_size:
            raise ValueError(
                f"keep_per_group is {self.keep_per_group}, but groups have {rollout.group_size} "
                "members: choose fewer, or null to keep all"
            )

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> Selection:
        """Return each member's weight, 0 if it is not selected or its environment failed."""
        table = GroupTable.gather(groups)
        weights = self.weigh(table)
        self._tell_if_nothing_is_kept(trainer, weights)
        own = dict(zip(table.group_ids, weights.tolist(), strict=True))
        reasons = dict(zip(table.group_ids, self.explain(table, weights), strict=True))
        return Selection(
            tuple(tuple(own[group.group_id][: len(group.trajectories)]) for group in groups),
            tuple(reasons[group.group_id] for group in groups),
        )

    def _tell_if_nothing_is_kept(self, trainer: Trainer, weights: Tensor) -> None:
        """Print a warning after some rollouts in a row of which RL has learned nothing."""
        self._empty = 0 if bool((weights > 0).any()) else self._empty + 1
        if self._empty == _EMPTY:
            announce(
                trainer,
                f"warning: the filter has kept no group of {_EMPTY} rollouts in a row: RL learns "
                "nothing: rewards may not differ within groups (rollout/zero_std_fraction), or "
                "filter.rule keeps too little",
            )

    def explain(self, table: GroupTable, weights: Tensor) -> list[str]:
        """Return why each group of a table got the weights of ``weigh``, in words."""
        scores, std = self._scores(table), table.std
        heaviest = [max(row, default=0.0) for row in weights.tolist()]
        ranks, among, rules = dict[int, int](), dict[int, int](), dict[int, str]()
        for env in table.env_names:
            places = table.places(env)
            # a rule of one's own may have no order
            best: Order = getattr(self.rule, "order", "largest")
            order = places[ranking(scores[places], best)].tolist()
            ranks |= {group: rank for rank, group in enumerate(order, start=1)}
            count = sum(heaviest[group] > 0 for group in places.tolist())
            where = f" of {env}" if env else ""
            rule = f"{_spelled(self.rule)} keeps {count} groups{where}"
            rules |= dict.fromkeys(places.tolist(), rule)
            among |= dict.fromkeys(places.tolist(), len(order))
        reasons = []
        for group, weight in enumerate(heaviest):
            score = f"{_SCORE_NAMES[self.score]} {float(scores[group]):.3g}"
            if not table.valid[group].any():
                why = "the environment failed in every member"
            elif self.rule is None:
                why = "every group is"
            elif group in ranks:
                why = f"{score}, rank {ranks[group]} of {among[group]}; {rules[group]}"
            elif std[group].isnan():
                why = "the environment failed in all members but one"
            else:
                why = "all members have the same return"
            reasons.append(f"{_verdict(weight)}: {why}")
        return reasons

    def weigh(self, table: GroupTable) -> Tensor:
        """Return every member's policy weight, (G, N), and record what was kept."""
        signal = table.signal
        by_group = torch.ones(len(signal), dtype=torch.float64)
        scores = self._scores(table)
        for env in table.env_names:  # environments of a mixture do not compete
            own = table.places(env)
            if self.rule is not None:
                by_group[own] = self.rule.weigh(scores[own])
            kept = (by_group[own] > 0).double()
            by_group[own] *= float(_mean(kept)) ** _SCALING_EXPONENTS[self.loss_scaling]
        members = table.valid
        if self.keep_per_group is not None:
            members = max_variance_subset(table.returns, members, self.keep_per_group)
        weights: Tensor = by_group[:, None] * members
        self._record_choice(table, signal, weights)
        return weights

    def _scores(self, table: GroupTable) -> Tensor:
        """Return the groups' scores, (G,); NaN for those that cannot be kept."""
        scores = _SCORES[self.score](table)
        return scores if self.include_zero else torch.where(table.signal, scores, torch.nan)

    def _record_choice(self, table: GroupTable, signal: Tensor, weights: Tensor) -> None:
        std = table.std
        scored = std.isnan().logical_not()
        kept = (weights > 0).any(dim=1)
        squares = float(weights.square().sum())
        ess_fraction = float(weights.sum()) ** 2 / (squares * weights.numel()) if squares else 0.0
        self.record(
            {
                "rollout/kept_fraction": float(_mean(kept.double())),
                "rollout/ess_fraction": ess_fraction,
                "rollout/in_group_std": float(_mean(std[scored])),
                "rollout/in_group_std_kept": float(_mean(std[kept & scored])),
                "rollout/zero_std_fraction": float(_mean(signal[scored].logical_not().double())),
            }
        )
        for env in table.env_names if table.envs else ():
            own = table.places(env)
            measured = own[scored[own]]
            self.record(
                {
                    f"rollout/{env}/kept_fraction": float(_mean(kept[own].double())),
                    f"rollout/{env}/in_group_std": float(_mean(std[measured])),
                    f"rollout/{env}/zero_std_fraction": float(
                        _mean(signal[measured].logical_not().double())
                    ),
                }
            )


def _active_rule(keep_fraction: float | None, rule: FilterRule | None) -> FilterRule | None:
    """Return the rule in force; None keeps every group."""
    if rule is not None:
        if keep_fraction is not None:
            raise ValueError(
                f"keep_fraction is {keep_fraction} beside the rule {type(rule).__name__}: only one "
                "can choose; set keep_fraction to null to use the rule"
            )
        rule.try_out()  # a class without a dataclass's constructor has not done so
        return rule
    if keep_fraction is None:
        raise ValueError(
            "keep_fraction is null and there is no rule: set keep_fraction to 1.0 to keep every "
            "group"
        )
    if not 0.0 < keep_fraction <= 1.0:
        raise ValueError(
            f"keep_fraction is {keep_fraction}; it must lie in (0, 1] (the paper's is 0.25, "
            "1 switches the filter off)"
        )
    return None if keep_fraction == 1.0 else TopFraction(keep_fraction)


def _verdict(weight: float) -> str:
    """Say in a word or two what a group's largest weight means."""
    return {0.0: "dropped", 1.0: "kept"}.get(weight, f"kept with weight {weight:.3g}")


def _spelled(rule: FilterRule | None) -> str:
    """Write a rule with its arguments, without the usual order."""
    if not is_dataclass(rule):
        return type(rule).__name__
    given = {field.name: getattr(rule, field.name) for field in fields(rule)}
    if given.get("order") == "largest":
        del given["order"]
    return f"{type(rule).__name__}({', '.join(f'{k} {v}' for k, v in given.items())})"


def _mean(values: Tensor) -> Tensor:
    return values.mean() if values.numel() else values.new_full((), torch.nan)
