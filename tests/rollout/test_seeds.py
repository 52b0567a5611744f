"""The seed stream of a run: no seed is used twice, also after a resume."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import MAX_GROUPS
from ragen_pl.rollout.demonstrations import MAX_DEMONSTRATIONS, WarmStart
from ragen_pl.rollout.seeds import FIRST_DEMONSTRATION, SEEDS_PER_RUN, SeedStream, group_seeds


def test_no_seed_and_no_group_id_is_used_twice() -> None:
    seen: set[int] = set()
    for iteration in range(50):
        group_ids: set[int] = set()
        for nth in range(4):
            chosen = group_seeds(3, iteration * 20, 20, nth)
            assert not seen & {group.seed for group in chosen}
            assert not group_ids & {group.group_id for group in chosen}
            seen |= {group.seed for group in chosen}
            group_ids |= {group.group_id for group in chosen}
    assert min(seen) >= 3 * SEEDS_PER_RUN
    assert max(seen) < 3 * SEEDS_PER_RUN + FIRST_DEMONSTRATION


def test_the_first_collections_are_those_of_a_run_that_collects_once() -> None:
    """Runs with and without dynamic sampling begin every iteration alike."""
    stream = SeedStream()
    positions = [stream.position(iteration, 8) for iteration in range(5)]
    flat = [group.seed for position in positions for group in group_seeds(1, position, 8, 0)]
    assert flat == [SEEDS_PER_RUN + i for i in range(40)]


def test_no_seed_is_repeated_when_a_run_is_resumed_with_another_number_of_groups() -> None:
    stream, seen, iteration = SeedStream(), set[int](), 0
    for num_groups in (8, 2, 16, 16, 4):
        for _ in range(3):
            for nth in range(2):
                chosen = group_seeds(0, stream.position(iteration, num_groups), num_groups, nth)
                assert not seen & {group.seed for group in chosen}
                seen |= {group.seed for group in chosen}
            iteration += 1
        saved = stream.state_dict(iteration, num_groups)
        stream = SeedStream()
        stream.load_state_dict(saved)


def test_the_last_collection_allowed_stays_below_the_demonstrations() -> None:
    assert group_seeds(0, 0, 8, 31)[-1].seed < FIRST_DEMONSTRATION


@given(st.integers(0, 2**32 - 1), st.integers(0, 10**6), st.integers(0, 31), st.integers(1, 64))
def test_no_run_of_any_seed_trains_on_the_seeds_of_an_evaluation_set(
    run_seed: int, iteration: int, nth: int, groups: int
) -> None:
    eval_sets = range(FIRST_EVAL_SEED, SEEDS_PER_RUN)
    rl = group_seeds(run_seed, iteration, groups, nth)
    assert all(group.seed not in eval_sets for group in rl)
    # A hundred seeds may be skipped for each demonstration, and a thousand more.
    first = run_seed * SEEDS_PER_RUN + FIRST_DEMONSTRATION
    demonstrations = range(first, first + 101 * MAX_DEMONSTRATIONS + 1001)
    assert demonstrations.stop <= eval_sets.start or demonstrations.start >= eval_sets.stop
    assert rl[-1].seed < demonstrations.start
    assert demonstrations.stop <= (run_seed + 1) * SEEDS_PER_RUN, "nor on another run's"


def test_more_demonstrations_than_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="demonstrations is 20000001; it may be at most 20000000"):
        WarmStart(demonstrations=MAX_DEMONSTRATIONS + 1)


def test_a_run_without_further_seeds_says_so() -> None:
    assert group_seeds(0, MAX_GROUPS - 8, 8, 0)[-1].seed == MAX_GROUPS - 1
    with pytest.raises(ConfigError, match=r"num_groups: 9 further starts, .* the 8 that are left"):
        group_seeds(0, MAX_GROUPS - 8, 9, 0)
