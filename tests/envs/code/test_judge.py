"""When two outputs are the same."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_pl.envs.code.judge import same_text, same_value


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (1, 1.0000001, True),
        (1, 1.001, False),
        (10**400, 10**400, True),
        (10**400, 10**400 + 1, False),
        (10**400, 1.0, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("inf"), True),
        (True, 1, False),
        (True, True, True),
        (None, None, True),
        (None, False, False),
        ("1", 1, False),
        ([1, [2.0]], [1.0, [2]], True),
        ([1], [1, 1], False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"b": 1}, False),
        ([], {}, False),
    ],
)
def test_values(one: Any, other: Any, same: bool) -> None:
    assert same_value(one, other) is same
    assert same_value(other, one) is same


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("a b \nc\n\n", "a b\nc", True),
        ("a  b", "a b", True),
        ("a\nb", "a b", False),
        ("0.30000001", "0.3", True),
        ("0.31", "0.3", False),
        ("3", "3.0", True),
        ("3.0", "3", False),
        ("12345678", "12345679", False),
        ("1e3", "1000.0", True),
        ("", "", True),
        ("nan", "0.5", False),
    ],
)
def test_texts(given: str, wanted: str, same: bool) -> None:
    assert same_text(given, wanted) is same
