"""A precision that makes a CPU slower is told."""

from __future__ import annotations

import pytest
import torch

from ragen_pl.runtime import bf16_speed
from ragen_pl.runtime.bf16_speed import bf16_slowdown, slow_bf16_warning

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_the_slowdown_is_that_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says what each product took, in the order in which they are timed."""
    seconds = iter([0.25, 1.0, 0.125, 0.5, 4.0, 2.0, 0.25, 1.0, 0.25, 0.75])  # float32, bfloat16, …
    timed: list[torch.dtype] = []

    def of_product(work) -> float:  # type: ignore[no-untyped-def]
        timed.append(work().dtype)
        return next(seconds)

    monkeypatch.setattr(bf16_speed, "_seconds", of_product)
    bf16_slowdown.cache_clear()
    try:
        assert bf16_slowdown() == 4.0, "0.5 s by 0.125 s: the fastest of each count"
        assert bf16_slowdown() == 4.0, "measured once"
    finally:
        bf16_slowdown.cache_clear()
    assert timed == [torch.float32, torch.bfloat16] * 5


@pytest.mark.parametrize(
    ("precision", "device", "slowdown", "is_told"),
    [
        ("bf16-mixed", CPU, 1.85, True),
        ("bf16-true", CPU, 90.0, True),
        ("bf16-mixed", CPU, 1.1, False),
        ("bf16-mixed", CPU, 0.5, False),
        ("bf16-mixed", GPU, 90.0, False),
        ("32-true", CPU, 90.0, False),
    ],
)
def test_a_slower_precision_is_told_with_what_to_set(
    precision: str,
    device: torch.device,
    slowdown: float,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bf16_speed, "bf16_slowdown", lambda: slowdown)
    told = slow_bf16_warning(precision, device)
    assert (told is not None) == is_told
    if told is not None:
        assert all(each in told for each in (precision, f"{slowdown:.1f} times"))
