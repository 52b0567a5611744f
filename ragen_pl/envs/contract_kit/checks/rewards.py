"""Rewards: whether they differ, and whether they do so within a group."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import (
    ChooseActions,
    Trial,
    play,
    play_at_random,
    play_between,
)
from ragen_pl.runtime.findings import Finding, failure, note, ok, warning

_GROUPS, _MEMBERS = 8, 6
_MOST_WITHOUT_SIGNAL = 0.8
_SHARE = 0.5
"""Share of a check's time for further members."""
_MORE_TIME = "give the checks more time: --seconds"
_LARGE = 1000.0
_ROUNDING = 1e-9


def check_rewards(subject: ExaminedEnv) -> Iterator[Finding]:
    """Play groups between expert and random, and look at the spread of their returns."""
    groups = _groups(subject)
    trials = [trial for group in groups for trial in group]
    trials += [*subject.random_play, *subject.expert_play]
    rewards = {round(step.reward, 9) for trial in trials for step in trial.steps}
    by_chance = subject.env.actions is None and not subject.expert_play
    if len(rewards) == 1 and subject.expert_play:
        yield constant_reward(rewards.pop())
        return
    largest = max(map(abs, rewards), default=0.0)
    if largest > _LARGE:
        yield warning(
            f"a reward has the size {largest:g}: it outweighs all others in a batch",
            "scale rewards to about 1",
        )
        return
    if by_chance:
        yield ok("actions are free text and there is no expert: spread is not judged")
        return
    if len(rewards) == 1:
        yield warning(
            f"random play always has the reward {rewards.pop():g}, and there is no expert to play "
            "better: RL that begins at random would find nothing",
            "reward partial success, choose easier starts, or let somebody teach: docs/teachers.md",
        )
        return
    if not groups:
        yield note("no start was played twice in the time, so spread is not judged", _MORE_TIME)
        return
    returns = [[trial.total_reward for trial in group] for group in groups]
    spread = sum(max(each) - min(each) > _ROUNDING * (1 + largest) for each in returns)
    between = "between expert and random" if subject.expert_play else "of random actions"
    yield spread_finding(spread, len(groups), between)


def _groups(subject: ExaminedEnv) -> list[list[Trial]]:
    """Return groups of at least two trials from one start each.

    Members that have been played for other checks are taken; others join them while there is time,
    from random play to the expert's.
    """
    at_random = {trial.seed: [trial] for trial in subject.random_play}
    groups = [[*at_random.get(trial.seed, ()), trial] for trial in subject.expert_play] or [
        *at_random.values()
    ]
    groups = groups[:_GROUPS]
    players: list[ChooseActions] = [play_at_random] * (_MEMBERS - 1)
    if subject.expert_play:
        players = [play_between(n / (_MEMBERS - 1)) for n in range(1, _MEMBERS - 1)]
    env = subject.copy()
    for number in subject.in_time(range(len(groups) * len(players)), share=_SHARE):
        player, group = divmod(number, len(groups))
        seed = groups[group][0].seed
        label = f"member {player}"
        groups[group].append(play(env, seed, player, players[player], label))
    return [group for group in groups if len(group) > 1]


def constant_reward(reward: float) -> Finding:
    """Return the finding of an environment whose reward never changes."""
    return failure(
        f"the environment's reward is {reward:g} in every turn, whatever is played",
        "let step reward what the agent is to learn",
    )


def spread_finding(spread: int, groups: int, play: str) -> Finding:
    """Return the finding about groups whose members' returns differ.

    Args:
        spread: Number of these groups.
        groups: Number of groups that were played.
        play: How they were played, such as ``of random actions``.
    """
    share = 1.0 - spread / groups
    text = (
        f"{spread} of {groups} groups have members of different returns, in play {play} "
        f"(zero-std fraction {share:.2f})"
    )
    if share > _MOST_WITHOUT_SIGNAL:
        return failure(
            text,
            "reward partial success, or choose easier starts: groups without spread teach nothing",
        )
    return ok(text)
