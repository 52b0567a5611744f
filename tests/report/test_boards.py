"""Pictures of recorded states are drawn with environments, and nothing else is called."""

from __future__ import annotations

from pathlib import Path

from ragen_pl.envs import FrozenLake, Sokoban
from ragen_pl.report.boards import Boards


def test_a_state_is_drawn_once() -> None:
    boards, env = Boards(), Sokoban()
    env.reset(seed=1)
    state = env.get_state()
    built = boards.environment({"data": {"env": {"class_path": "ragen_pl.envs.Sokoban"}}}, None, "")
    assert [boards.number(built, state) for _ in range(2)] == [0, 0]
    assert len(boards.pictures) == 1
    assert boards.pictures[0].startswith("data:image/svg+xml,")


def test_what_a_foreign_config_names_is_not_called_unless_it_is_an_environment(
    tmp_path: Path,
) -> None:
    touched = tmp_path / "touched"
    node = {"class_path": "subprocess.check_call", "init_args": {"args": ["touch", str(touched)]}}
    assert Boards().environment({"data": {"env": node}}, None, "") is None
    assert not touched.exists()


def test_the_rollouts_of_a_mixture_are_drawn_by_the_environments_name() -> None:
    """Their report had no pictures."""
    nodes = {name: {"class_path": f"ragen_pl.envs.{name}"} for name in ("Bandit", "FrozenLake")}
    boards, config = Boards(), {"data": {"envs": nodes}}
    lake = boards.environment(config, None, "frozen_lake")
    assert isinstance(lake, FrozenLake)
    lake.reset(seed=1)
    assert boards.number(lake, lake.get_state()) == 0
    assert boards.environment(config, None, "sokoban") is None
