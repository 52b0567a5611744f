"""What callbacks select, which may be a user's own: its form is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import NoReturn

from ragen_pl.runtime.user_classes import contract_error, described
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import Selection, TrajectoryGroup


def check_selections(
    given: Sequence[tuple[RolloutCallback, object]], groups: Sequence[TrajectoryGroup]
) -> None:
    """Refuse what is neither None nor a selection of these groups, by the callbacks that gave it.

    Raises:
        ConfigError: naming the callback, what it returned and what it must return.
    """
    for callback, selection in given:
        _check_selection(callback, selection, groups)


def _check_selection(
    callback: RolloutCallback, given: object, groups: Sequence[TrajectoryGroup]
) -> None:
    def refuse(told: str, wanted: str) -> NoReturn:
        raise contract_error(callback, "on_rollout_end", told, wanted)

    if given is None:
        return
    if not isinstance(given, Selection):
        refuse(described(given), "a Selection (ragen_pl.types), or None to leave the weights")
    if len(given.weights) != len(groups):
        refuse(
            f"weights of {len(given.weights)} groups",
            f"one tuple of weights for each of this rank's {len(groups)} groups, in their order",
        )
    for number, (row, group) in enumerate(zip(given.weights, groups, strict=True)):
        if not isinstance(row, tuple | list) or len(row) != len(group.trajectories):
            refuse(
                f"{described(row)} as the weights of group {number}",
                f"one weight for each of its {len(group.trajectories)} trajectories",
            )
        for weight in row:
            if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:  # NaN is not
                refuse(
                    f"{weight!r:.40} as a weight of group {number}",
                    "finite Python numbers of 0 or more; of a tensor take .tolist()",
                )
    if given.reasons and len(given.reasons) != len(groups):
        refuse(f"{len(given.reasons)} reasons", f"none, or one for each of {len(groups)} groups")
