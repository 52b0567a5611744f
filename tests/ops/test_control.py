"""A controlled coefficient moves in the right direction, within bounds, and converges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.algorithms.coefficients import steer


def test_by_hand() -> None:
    assert steer(1.0, 1.1, 1.0, 10, raises=False) == pytest.approx(1.01)
    assert steer(1.0, 1.1, 1.0, 10, raises=True) == pytest.approx(0.99)
    assert steer(1.0, 2.2, 2.0, 10, raises=False) == pytest.approx(1.01)
    assert steer(1.0, 99.0, 1.0, 10, raises=False) == pytest.approx(1.02)
    assert steer(1.0, -99.0, 1.0, 10, raises=False) == pytest.approx(0.98)


@given(st.floats(1e-4, 10), st.floats(0, 100), st.floats(0.01, 10), st.booleans())
def test_it_stays_positive_and_moves_towards_the_target(
    coef: float, measured: float, target: float, raises: bool
) -> None:
    after = steer(coef, measured, target, 5, raises=raises)
    assert after > 0
    assert abs(after / coef - 1) <= 0.2 / 5 + 1e-9
    wants_more = (measured < target) if raises else (measured > target)
    assert after >= coef if wants_more else after <= coef


@pytest.mark.parametrize("raises", [True, False])
def test_it_finds_the_coefficient_that_gives_the_target(raises: bool) -> None:
    coef = 0.1
    for _ in range(2000):
        measured = coef if raises else 1 / coef
        coef = steer(coef, measured, 4.0, 5, raises=raises)
    assert (coef if raises else 1 / coef) == pytest.approx(4.0, rel=1e-3)
