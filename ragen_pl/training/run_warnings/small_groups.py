"""The warning of groups that are too small for an algorithm that compares their members."""

from __future__ import annotations

from ragen_pl.rollout.config import RolloutConfig


def small_groups_warning(comparing: str | None, rollout: RolloutConfig) -> str | None:
    """Return a warning if an estimator compares the members of groups of two: standardized by their
    group, all advantages are of one size, whatever the returns; None otherwise.

    Args:
        comparing: Name of the estimator; None for one that does not compare members.
        rollout: The sizes of a collection.
    """
    groups, members = rollout.num_groups, rollout.group_size
    if comparing is None or members != 2 or groups < 4:
        return None
    return (
        f"data.rollout.group_size is 2, and {comparing} compares the members of a group: with two "
        "of them it only knows which was better. As many trajectories in larger groups: "
        f"--data.rollout.num_groups {groups // 4} --data.rollout.group_size 8"
    )
