"""The fingerprint of an environment's code follows its files, not its state; that of a file of data
its content."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from ragen_pl.envs import Bandit, Sokoban
from ragen_pl.envs.fingerprint import code_fingerprint, file_fingerprint

MODULE = """
from ragen_pl.envs import Bandit
from planted.helper import PAY

class Own(Bandit):
    pay = PAY
"""


def test_it_is_the_classs_and_not_the_instances() -> None:
    assert code_fingerprint(Sokoban()) == code_fingerprint(Sokoban(size=8))
    assert code_fingerprint(Sokoban()) != code_fingerprint(Bandit())


@pytest.mark.parametrize("edited", ["own.py", "helper.py"])
def test_an_edit_of_the_class_or_of_what_it_uses_changes_it(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    for name, text in (("__init__", ""), ("own", MODULE), ("helper", "PAY = len\\n")):
        (folder / f"{name}.py").write_text(text.replace("\\n", "\n"))
    (folder / "helper.py").write_text("def PAY() -> int:\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("planted")]:
        del sys.modules[name]
    env = importlib.import_module("planted.own").Own()
    before = code_fingerprint(env)
    assert before == code_fingerprint(env)
    with (folder / edited).open("a") as file:
        file.write("# edited\n")
    assert code_fingerprint(env) != before


def test_a_file_s_fingerprint_is_its_lines_and_its_content(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    seen = set()
    for content, lines in ((b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"c\nb", 2)):
        path.write_bytes(content)
        found = file_fingerprint(path)
        assert found.startswith(f"{lines}:")
        assert found == file_fingerprint(path)
        seen.add(found)
    assert len(seen) == 5
