"""Links, configs and scripts that the documentation names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragen_pl.cli.config.files import FOLDER, KINDS, find_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "benchmarks/README.md")),
    ROOT / "benchmarks" / "LOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
EXAMPLES = (
    "guess.yaml",
    "guess_number",
    "my_filter.yaml",
    "my_lake.yaml",
    "my_lean.yaml",
    "my_questions.yaml",
    "my_rewards.yaml",
    "NAME",
    "NAME.yaml",
    "runs/sokoban/config.yaml",
)
"""Configs that a page tells the reader to write."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """List the anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Iterate over a page's relative links: as written, the file, the anchor."""
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text_of(page))):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            yield link, (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link, target, anchor in links(page):
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_name_files_that_exist(page: Path) -> None:
    code = "\n".join(re.findall(r"`+[^`]+`+", text_of(page)))
    for name in re.findall(r"--config[ =]([\w.\-/]+)", code):
        assert name in EXAMPLES or find_config(name), name
    for script in re.findall(r"python ([\w/]+\.py)", code):
        assert (ROOT / script).is_file() or page.name == "LOG.md", script


def test_the_readme_is_one_screen_and_keeps_its_commands() -> None:
    readme = text_of(ROOT / "README.md")
    assert len(readme.splitlines()) <= 150
    assert (
        "pip install -c constraints.txt -e . && python run.py fit --config sokoban.yaml\n" in readme
    )
    assert "pip install -c constraints.txt -e '.[test]' && pytest\n" in readme


@pytest.mark.parametrize("kind", KINDS)
def test_every_shipped_config_is_named_in_the_readme(kind: str) -> None:
    (row,) = re.findall(rf"^\| \d \| \[{kind}\].*$", text_of(ROOT / "README.md"), re.MULTILINE)
    named = {name.removesuffix(".yaml") for name in re.findall(r"`([^`]+)`", row)}
    assert {path.stem for path in (FOLDER / kind).glob("*.yaml")} - named == set()


def test_every_variant_is_named_in_the_recipes() -> None:
    (row,) = re.findall(r"^5\. `variant`.*$", text_of(ROOT / "docs/recipes.md"), re.MULTILINE)
    variants = {path.stem for path in (FOLDER / "variant").glob("*.yaml")}
    assert variants == set(re.findall(r"`([^`]+)`", row)) - {"variant"}
