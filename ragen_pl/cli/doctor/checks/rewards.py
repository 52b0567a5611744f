"""Rewards: whether they differ within groups, and which terms never change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.envs.contract_kit.checks.rewards import constant_reward, spread_finding
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.rollout.rewards import ENV
from ragen_pl.runtime.findings import Finding, Severity, ok, warning


def check_rewards(subject: ExaminedRun) -> Iterator[Finding]:
    """Play between expert and random, and look at the spread of returns and at each term."""
    groups = subject.written.groups
    whole = subject.written.all + subject.expert_play
    whole += [t for group in subject.samples for t in group.trajectories]
    values: defaultdict[str, set[float]] = defaultdict(set)
    for trajectory in whole:
        for turn in trajectory.turns:
            for name, value in turn.rewards.items():
                values[name].add(round(value, 9))
    if len(values[ENV]) == 1:
        yield constant_reward(values[ENV].pop())
        return
    found = False
    has_good_turns = any(turn.is_valid for trajectory in whole for turn in trajectory.turns)
    for name in subject.data.rollout.reward_terms if has_good_turns else ():
        if len(values[name]) < 2:
            found = True
            what = f"always {values[name].pop():g}" if values[name] else "never given"
            yield warning(
                f"data.rollout.rewards.{name} is {what}, in good turns and in nonsense: it teaches "
                "nothing",
                f"mend the term, or set data.rollout.rewards.{name} to null",
            )
    if not groups:
        yield ok("actions are free text and there is no expert: spread is not judged")
        return
    signal = GroupTable.gather(groups).signal
    spread = spread_finding(int(signal.sum()), len(groups), "between expert and random")
    if spread.level is not Severity.OK or not found:
        yield spread
