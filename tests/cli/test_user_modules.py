"""Modules of one's own that cannot be read, or take the names of others, are told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ragen_pl.cli.entry_point import main
from tests.support.refused_command import fails


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("class Slip(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('boom')", "ValueError: boom"),
        ("raise TypeError('boom')", "TypeError: boom"),
        ("raise AttributeError('boom')", "AttributeError: boom"),
    ],
)
def test_a_slip_in_the_file_of_an_environment_is_told(
    text: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slip.py").write_text(text)
    error = fails(capsys, "--data.env", "slip.Slip")
    assert "slip.Slip cannot be imported" in error
    assert told in error


@pytest.mark.usefixtures("config")
def test_a_misspelled_class_in_a_list_of_callbacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "over.yaml").write_text(
        "trainer: {callbacks: [{class_path: callbacks.VarianceFiler}]}"
    )
    assert "did you mean callbacks.VarianceFilter" in fails(capsys, "--config", "over.yaml")


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("file", ["callbacks.py", "callbacks/__init__.py"])
def test_a_module_with_the_name_of_the_shipped_callbacks_is_told(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text("class Mine: ...\n")
    Path("uses_callbacks.py").write_text("from callbacks import Mine\n")
    for option in ("--trainer.callbacks+=callbacks.Mine", "--data.env=uses_callbacks.Env"):
        error = fails(capsys, option)
        assert f"your {file} is not read, since callbacks is a package of ragen-pl" in error
        assert "callbacks/mine.py" in error


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", ["html", "time"])  # Python's own, in a file and without one
def test_a_module_with_the_name_of_one_of_pythons_is_told(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path(f"{name}.py").write_text("class Mine: ...\n")
    error = fails(capsys, f"--data.env={name}.Mine")
    assert f"your {name}.py is not read, since there is another module {name} (" in error


@pytest.mark.usefixtures("config")
def test_an_argument_without_a_type_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("untyped_task.py").write_text(
        "from ragen_pl.envs.bandit import Bandit\n"
        "class Untyped(Bandit):\n"
        "    def __init__(self, size):\n"
        "        super().__init__()\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert main(["check-env", "--env", "untyped_task.Untyped"]) == 2
    told = "untyped_task.Untyped: its argument size has no type: annotate it, such as size: int"
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("config")
def test_a_module_of_that_name_that_was_imported_before_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ModuleType("callbacks")
    other.__file__ = "here/callbacks.py"
    monkeypatch.setitem(sys.modules, "callbacks", other)
    assert "the module callbacks is here/callbacks.py, but ragen-pl has a package" in fails(capsys)
