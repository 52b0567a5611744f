"""Where two values differ: the first place, with both values."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_pl.envs.contract.differences import difference

GRID = "#####\n#_P_#\n#___#\n#####"


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "state['a'][1]['b']: 2 and 3"),
        ({"a": 1}, {"a": 1, "b": 5}, "state['b']: 5 in one of them only"),
        ([1, 2], [1, 2, 3], "state[2]: 3 in one of them only"),
        ({"a": None}, {"a": []}, "state['a']: None and []"),
        ("stair 1", "stair 2", "state: 'stair 1' and 'stair 2'"),
        (
            GRID,
            GRID.replace("_P_", "P__"),
            "state: '#####\\n#_P_#\\n#___#\\n#####' and '#####\\n#P__#\\n#___#\\n#####'",
        ),
        (
            f"{GRID}\nmoved",
            f"{GRID}\nstayed",
            "state from character 1 of line 5 on: …'#___#\\n#####\\nmoved' and "
            "…'#___#\\n#####\\nstayed'",
        ),
        ("x" * 100, "x" * 99, "state from character 100 on: …'xxxxxxxxxxxxx' and …'xxxxxxxxxxxx'"),
        ({"a": {"b": [1]}}, {"a": {"b": [1]}}, ""),
    ],
)
def test_the_first_place_that_differs_is_told(one: Any, other: Any, told: str) -> None:
    assert difference(one, other, "state") == told


def test_names_of_facts_begin_the_place() -> None:
    assert difference({"reward": 1.0}, {"reward": 0.0}) == "reward: 1.0 and 0.0"
    assert difference({"state": {"a": 1}}, {"state": {"a": 2}}) == "state['a']: 1 and 2"
    assert difference("a", "b") == "'a' and 'b'"


def test_long_values_are_shortened() -> None:
    told = difference({"a": list(range(1000))}, {"a": None}, "state")
    assert len(told) < 150
    assert told.endswith("… and None")
