"""The environment's expert, on which a warm start rests unless it has another teacher."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.rollout.actors import ExpertActor
from ragen_pl.rollout.baselines import play_baseline
from ragen_pl.runtime.findings import Finding, failure, ok
from ragen_pl.types import StopReason, Trajectory

_STARTS = 24


def check_expert(subject: ExaminedRun) -> Iterator[Finding]:
    """Let the expert play within the agent's budgets: its actions must be legal, and it must
    succeed now and then."""
    data = subject.data
    if not subject.has_expert:
        warm_start = subject.data.warm_start
        if warm_start.iterations:
            name = type(warm_start.teacher).__name__
            yield ok(f"the environment has no expert, and the warm start's teacher is {name}")
            return
        yield ok("the environment has no expert, and the warm start is off")
        return
    played: list[Trajectory] = []
    for number in range(_STARTS):
        seed = subject.first_seed + number
        name = subject.env_of(number)
        env, rollout = data.envs[name], data.rollout_in[name]
        group = play_baseline(env, seed, number, rollout, ExpertActor())
        played.extend(group.trajectories)
    failed = [each for each in played if each.stop_reason is StopReason.ENV_ERROR]
    if failed:
        yield failure(
            f"the expert failed at {len(failed)} of {len(played)} starts: {failed[0].error}",
            "mend expert_turn: it returns a thought and from 1 to max_actions of the actions",
        )
        return
    solved = sum(each.success for each in played)
    if not solved:
        yield failure(
            f"the expert solved none of {len(played)} starts within {data.rollout.max_turns} turns "
            f"and the environment's max_actions, so that there is nothing to imitate",
            "mend expert_turn, or raise data.rollout.max_turns or the environment's max_actions",
        )
        return
    yield ok(f"the expert solves {solved} of {len(played)} starts within the agent's budgets")
