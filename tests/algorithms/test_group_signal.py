"""All parts of the library agree on which groups have members with different returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from callbacks import VarianceFilter
from callbacks.echo_trap_detector import measure
from callbacks.gradient_probe import in_group_stds
from ragen_pl.algorithms.estimators import GRPO, RLOO, DrGRPO, GiGPO, ReinforcePlusPlusBaseline
from ragen_pl.algorithms.estimators.base import WithoutCritic
from ragen_pl.algorithms.filters import SoftWeights, TopFraction, TopP
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.rollout.packing import pack
from ragen_pl.training.dynamic_sampling import DynamicSampling, collect_groups
from ragen_pl.types import StopReason, TrajectoryGroup, trainable_trajectories
from tests.support.doubles import make_trajectory, make_turn

UNUSED = cast(Any, SimpleNamespace(is_global_zero=False))
WITH: dict[str, Sequence[Sequence[float]]] = {
    "one wins": [[0.0], [0.0], [1.0]],
    "one step less": [[-0.1] * 9 + [10.9], [-0.1] * 9 + [11.0]],
    "tiny rewards": [[1e-8], [2e-8]],
    "tiny rewards, nearly equal": [[1e-8], [1.001e-8]],
    "a large offset": [[1e6], [1e6 + 10]],
    "both signs": [[-1e-8], [1e-8]],
    "one small reward among many zeros": [*[[0.0]] * 63, [1e-3]],
}
WITHOUT: dict[str, Sequence[Sequence[float]]] = {
    "equal": [[1.0], [1.0], [1.0]],
    "nothing earned": [[0.0], [0.0]],
    "equal tiny rewards": [[1e-8], [1e-8]],
    "another order": [[0.1, 0.2], [0.3]],
    "many small steps": [[-0.1] * 10, [-0.2] * 5, [-1.0]],
    "rewards that cancel": [[0.1, 0.2, -0.3], [0.0]],
    "a difference below float32's precision": [[1e6], [1e6 + 1e-3]],
    "one valid member": [[1.0]],
}
CASES = {name: (rewards, True) for name, rewards in WITH.items()} | {
    name: (rewards, False) for name, rewards in WITHOUT.items()
}


def group(rewards: Sequence[Sequence[float]]) -> TrajectoryGroup:
    """Make a group of members with these rewards by turn, and one whose environment raised an error
    after a large reward."""
    members = [
        make_trajectory([make_turn(reward) for reward in turns], member=member)
        for member, turns in enumerate(rewards)
    ]
    broken = make_trajectory(
        [make_turn(1e9)], member=len(members), stop_reason=StopReason.ENV_ERROR
    )
    return TrajectoryGroup(0, 0, (*members, broken))


def filtered(chosen: VarianceFilter) -> Callable[[TrajectoryGroup], bool]:
    return lambda group: any(
        chosen.on_rollout_end(UNUSED, UNUSED, [group]).weights[0][: len(group.trajectories)]
    )


def metric(group: TrajectoryGroup) -> bool:
    chosen = VarianceFilter()
    chosen.weigh(GroupTable.gather([group]))
    return chosen.recorded.get("rollout/zero_std_fraction", 1.0) == 0.0


def sampled_dynamically(group: TrajectoryGroup) -> bool:
    def play(share: Sequence[GroupSeed]) -> list[TrajectoryGroup]:
        return [group] if share[0].group_id == 0 else []

    found = collect_groups(play, lambda nth: [GroupSeed(nth, nth)], DynamicSampling())
    return found.trains_policy == [True]


def alarmed(group: TrajectoryGroup) -> bool:
    indicators = measure([group], None, None)
    assert indicators is not None
    return indicators.in_group_std > 0 and indicators.zero_std_fraction == 0


def estimated(estimator: WithoutCritic) -> Callable[[TrajectoryGroup], bool]:
    def answer(group: TrajectoryGroup) -> bool:
        members = trainable_trajectories([group])
        rollout = pack(members, weights=[1.0] * len(members))
        return bool(estimator.compare(rollout, rollout.rewards).any())

    return answer


def probed(group: TrajectoryGroup) -> bool:
    members = trainable_trajectories([group])
    return in_group_stds(pack(members, weights=[1.0] * len(members))).get(0, 0.0) > 0


CONSUMERS: dict[str, Callable[[TrajectoryGroup], bool]] = {
    "table": lambda group: bool(GroupTable.gather([group]).signal[0]),
    "filter": filtered(VarianceFilter(None, rule=TopFraction(1.0))),
    "filter by mass": filtered(VarianceFilter(None, rule=TopP(1.0))),
    "zero_std_fraction": metric,
    "dynamic sampling": sampled_dynamically,
    "alarm": alarmed,
    "probe": probed,
    "GRPO": estimated(GRPO()),
    "DrGRPO": estimated(DrGRPO()),
    "RLOO": estimated(RLOO()),
    "REINFORCE++ baseline": estimated(ReinforcePlusPlusBaseline()),
    "GiGPO": estimated(GiGPO(step_weight=0.0)),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("case", CASES)
def test_all_consumers_agree_on_which_groups_carry_signal(case: str, consumer: str) -> None:
    rewards, differs = CASES[case]
    assert CONSUMERS[consumer](group(rewards)) is differs


def test_rounding_errors_do_not_rank_groups_without_signal() -> None:
    noisy = group([[0.1, 0.2], [0.3]])
    members = (make_trajectory([make_turn(1.0)], group_id=1, member=m) for m in range(2))
    equal = TrajectoryGroup(1, 1, tuple(members))
    for rule in (TopP(0.9), SoftWeights()):
        chosen = VarianceFilter(None, include_zero=True, rule=rule)
        weights = chosen.on_rollout_end(UNUSED, UNUSED, [noisy, equal]).weights
        assert [row[0] for row in weights] == [1.0, 1.0]


def test_a_group_with_large_returns_does_not_hide_the_signal_of_another() -> None:
    """The threshold of a group depends on its own returns only."""
    small, large = group([[1e-3], [2e-3]]), group([[1e6], [1e6]])
    large = TrajectoryGroup(1, 1, large.trajectories)
    assert GroupTable.gather([small, large]).signal.tolist() == [True, False]


def test_turns_in_one_state_are_compared_in_full_precision() -> None:
    """Sums of the same rewards in another order are equal, over any number of turns."""
    turns = [[0.1] * 40 + [1.0], [1.0] + [0.1] * 40]
    members = [
        make_trajectory([make_turn(reward) for reward in rewards], member=member)
        for member, rewards in enumerate(turns)
    ]
    rollout = pack(members, weights=[1.0, 1.0])
    first = rollout.turn_index == 0
    state = torch.where(first, 0, rollout.turn_index * 2 + torch.arange(2)[:, None])
    compared = GiGPO(turn_gamma=1.0).compare(replace(rollout, state_ids=state), rollout.rewards)
    assert not compared[first & rollout.loss_mask].any()
