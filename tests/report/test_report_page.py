"""The page: self-contained, with everything that was said and nothing that runs."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.report import page as page_module
from ragen_pl.report.page import (
    build_report,
    packed,
    plotly_source,
    script_hash,
    settings,
    shares,
    to_script_json,
)
from ragen_pl.report.run_data import RunReader
from ragen_pl.runtime.visible_text import visible
from tests.support.report_runs import HOSTILE, write_run


def unpacked(content: str) -> str:
    """Return what ``packed`` was given."""
    return gzip.decompress(base64.b64decode(content)).decode("utf-8")


class Page(HTMLParser):
    """The elements of a page: scripts by id, and all tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: dict[str, str] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._script: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or "own"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.words += data
        else:
            self.scripts[self._script] += data

    @property
    def policy(self) -> str:
        (found,) = [
            a["content"] or ""
            for tag, a in self.tags
            if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        ]
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("page") / "hostile", HOSTILE, num_groups=4)


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return build_report([RunReader(folder).read()])


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_five_scripts_and_no_handler(page: Page) -> None:
    assert set(page.scripts) == {"data", "archive", "metrics", "library", "own"}
    assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")]
    for _, attributes in page.tags:
        for name in ("href", "src"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/svg+xml,"))


def test_the_policy_allows_the_two_scripts_alone(page: Page) -> None:
    directives = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"].split() == [
        script_hash(page.scripts["own"]),
        script_hash(plotly_source()),
    ]
    assert unpacked(page.scripts["library"]) == plotly_source()
    assert directives["img-src"] == "data:"
    assert "connect-src" not in directives
    assert "unsafe-eval" not in page.policy


def test_the_policy_stands_before_anything_it_concerns(text: str) -> None:
    assert text.index("Content-Security-Policy") < min(text.index("<style"), text.index("<script"))


def test_everything_said_is_in_the_page(page: Page) -> None:
    archive = json.loads(unpacked(page.scripts["archive"]))
    thoughts = {turn["thought"] for each in archive["details"] for turn in each["turns"]}
    assert thoughts == {visible(text) for text in HOSTILE}
    said = {"".join(t["tokens"]["text"]) for each in archive["details"] for t in each["turns"]}
    for text in HOSTILE:
        assert any(each.startswith(visible(text)) for each in said)
    rows = json.loads(page.scripts["data"])["rows"]
    assert len(rows) == len(archive["details"]) == 12 + 2 * len(HOSTILE)
    assert len({row["id"] for row in rows}) == len(rows)


def test_boards_are_pictures_stored_once(page: Page) -> None:
    archive = json.loads(unpacked(page.scripts["archive"]))
    rows = json.loads(page.scripts["data"])["rows"]
    numbers = {number for row in rows for number in row["boards"]}
    assert numbers == set(range(len(archive["boards"])))
    assert (
        len(set(archive["boards"])) == len(archive["boards"]) < sum(len(r["boards"]) for r in rows)
    )
    assert all(url.startswith("data:image/") for url in archive["boards"])


def test_the_tables_need_no_script(page: Page) -> None:
    for words in ("75.0 %", "25.0 %", "success fell", "warm-started", "data.env.init_args.size"):
        assert words in page.words
    assert "Learned by RL and the <symmetries> of the task." in page.words


def test_hostile_names_are_escaped(folder: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(folder, hostile)
    results = json.loads((hostile / "results.json").read_text())
    results |= {"status": "failed", "reason": HOSTILE[0]}
    for entry in results["evaluations"]:
        entry["eval_set"] = HOSTILE[1]
        entry["by_difficulty"] = {HOSTILE[2]: [0.5, 4]}
    (hostile / "results.json").write_text(json.dumps(results))
    (hostile / "environment.json").write_text(json.dumps({HOSTILE[0]: HOSTILE[1]}))
    found = Page(build_report([RunReader(hostile).read(), RunReader(folder).read()]))
    assert set(found.scripts) == {"data", "archive", "metrics", "library", "own"}
    assert not [a for tag, a in found.tags if tag == "img" or "onerror" in a or "onload" in a]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_in_a_script_is_inert_and_comes_back(data: Any) -> None:
    text = to_script_json(data)
    assert text.isascii()
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert json.loads(text) == data


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_packed_text_is_base64_and_comes_back(text: str) -> None:
    content = packed(text)
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", content)
    assert unpacked(content) == text


def test_a_page_of_nothing_but_a_configuration(tmp_path: Path) -> None:
    run = tmp_path / "young"
    run.mkdir()
    (run / "config.yaml").write_text("seed_everything: 1\n")
    found = Page(build_report([RunReader(run).read()]))
    for words in ("No results", "No metrics", "No trajectories to show", "seed_everything"):
        assert words in found.words


def test_starts_are_counted_once_however_often_they_are_played(folder: Path) -> None:
    run = RunReader(folder).read()
    *_, final = run.evaluations
    repeated = replace(final.result, repeated_seeds={2: 1, 3: 1})
    page = Page(build_report([replace(run, evaluations=(replace(final, result=repeated),))]))
    assert "2 in 4 tries" in " ".join(page.words.split())
    assert final.result.num_starts == 4
    assert "in 4 tries" not in " ".join(Page(build_report([run])).words.split())


def test_settings_are_compared_with_their_defaults(folder: Path) -> None:
    run = RunReader(folder).read()
    found = {
        each.key: each for each in settings(run, {"trainer.max_epochs": 100, "run_dir": "runs/x"})
    }
    assert found["trainer.max_epochs"].differs
    assert found["trainer.max_epochs"].default == "100"
    assert not found["run_dir"].differs
    assert found["seed_everything"].default is None


def test_the_limit_is_shared(folder: Path) -> None:
    run = RunReader(folder).read()
    assert shares([run, run], 20) == [10, 10]
    assert shares([run], 1000) == [len(run.entries)]
    assert Page(build_report([run], 6)).words.count("5 of 32 recorded trajectories") == 1


def test_long_responses_leave_room_for_fewer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunReader(folder).read()
    sizes = [entry.size for entry in run.entries]
    monkeypatch.setattr(page_module, "MAX_BYTES", sum(sizes) // 2)
    shown = json.loads(Page(build_report([run])).scripts["data"])["rows"]
    assert 10 <= len(shown) <= 16 < len(sizes)
