"""The page of benchmarks lists every script and every configuration beside it."""

from __future__ import annotations

from tests.support.tiny_run import ROOT


def test_every_file_is_on_the_page() -> None:
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    files = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("benchmarks/*.yaml")]
    assert files
    assert [path.name for path in files if f"`{path.name}`" not in page] == []
