"""Findings as a terminal shows them."""

from __future__ import annotations

import pytest

from ragen_pl.runtime.findings import CheckFinding, Finding, failure, ok, summary, warning


@pytest.mark.parametrize(
    ("findings", "told"),
    [
        ([ok("a"), ok("b"), warning("c", "do")], "2 ok, 1 warning; 3 s"),
        (
            [ok("a"), warning("b", "do"), warning("c", "do"), failure("d", "do"), failure("e", "")],
            "1 ok, 2 warnings, 2 failures; 3 s",
        ),
    ],
)
def test_a_summary_counts_by_level(findings: list[Finding], told: str) -> None:
    assert summary([CheckFinding("check", each, 0.0) for each in findings], 3.2) == told
