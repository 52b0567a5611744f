"""Seeds of evaluation sets, and whether a dialogue shows one of their states."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boards import split_of_digest
from ragen_pl.envs.eval_seeds import eval_starts
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.frozen_lake.env import layout_key as lake_layout
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sokoban.rooms import split_of_board


def eval_seeds(env: TextEnv, size: int) -> list[int]:
    """Return the seeds of ``eval_starts``."""
    return [start.seed for start in eval_starts(env, size)]


def start_keys(env: TextEnv, size: int) -> set[str]:
    """Return the keys of an evaluation set's starts."""
    keys = set()
    for seed in eval_seeds(env, size):
        env.reset(seed=seed)
        keys.add(env.start_key())
    return keys


def layout_split(env: TextEnv) -> str:
    """Return the split of a state's layout: its walls and targets, or its holes and goal."""
    if isinstance(env, Sokoban):
        return split_of_board(env._board)
    assert isinstance(env, FrozenLake)
    return split_of_digest(lake_layout(env.size, env._lake.holes, env._lake.goal))


def shown_states(env: Sokoban | FrozenLake, text: str) -> Iterator[TextEnv]:
    """Iterate over the states that a dialogue shows as grids, each as an environment in it."""
    for part in text.split("State:\n")[1:]:
        rows = [row[: env.size] for row in part.split("\n")[: env.size]]
        shown = copy.deepcopy(env)
        shown.set_state({"size": env.size, "num_actions": 0, **_cells(env, "".join(rows))})
        assert shown.render_text() == "\n".join(rows)
        yield shown


def _cells(env: TextEnv, grid: str) -> dict[str, int | list[int]]:
    """Return the cells of a state that has not ended by the marks of its grid."""

    def cells(marks: str) -> list[int]:
        return [cell for cell, mark in enumerate(grid) if mark in marks]

    (player,) = cells("PS")
    if isinstance(env, FrozenLake):
        (goal,) = cells("G")
        return {"player": player, "holes": cells("O"), "goal": goal}
    return {
        "player": player,
        "walls": cells("#"),
        "targets": cells("O√S"),
        "boxes": cells("X√"),
    }
