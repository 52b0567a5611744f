"""A project of one's own: written by ``new``, tested and trained in its own folder."""

from __future__ import annotations

import json
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env

from ragen_pl.cli.entry_point import main
from tests.support.tiny_run import ROOT, run_process

CONSOLE_SCRIPT = """\
import sys
from ragen_pl.cli.entry_point import main
if __name__ == "__main__":
    sys.exit(main())
"""
LOUD = """\
from ragen_pl import RolloutCallback

class Loud(RolloutCallback):
    def on_fit_start(self, trainer, pl_module):
        print("a callback of one's own")
"""
SHORT = (
    *("--trainer.max_epochs=2", "--data.warm_start.iterations=1", "--data.evaluation.size=4"),
    *("--data.warm_start.demonstrations=20", "--data.rollout.num_groups=2", "--threads=1"),
)


def test_new_says_what_it_wrote_and_what_to_type_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "some/project"]) == 0
    said = capsys.readouterr().out
    assert "cd some/project\n" in said
    assert "fit --config guess_number" in said
    folder = tmp_path / "some/project"
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {
        *("README.md", "guess_number.py", "test_guess_number.py"),
        "configs/experiment/guess_number.yaml",
    }
    assert (folder / "README.md").read_text().startswith("# project\n")
    assert all(name in said for name in written)


def test_the_line_to_type_next_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my folder"]) == 0
    assert "cd 'my folder'\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "no folder"),
        (["--force"], "--force"),
        (["a", "b"], "a b"),
        (["full"], "full is a folder that is not empty"),
        (["full/file"], "full/file is a file"),
        (["full/file/more"], "full/file/more cannot be written"),
    ],
)
def test_new_takes_one_folder_that_is_empty_or_not_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["new", *args]) == 2
    assert told in capsys.readouterr().err
    assert [str(path) for path in Path().rglob("*")] == ["full", "full/file"]


@pytest.mark.filterwarnings("error")
def test_gymnasium_s_checker_finds_nothing_in_a_new_project(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    assert main(["new", str(folder)]) == 0
    names = runpy.run_path(str(folder / "guess_number.py"))
    check_env(names["GuessNumber"](), skip_render_check=True)


@pytest.mark.run
def test_a_new_project_passes_its_test_and_trains_with_its_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = run_process([sys.executable, str(ROOT / "run.py"), "new", "mine"], tmp_path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "mine"
    result = run_process([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout

    (folder / "callbacks").mkdir()
    (folder / "callbacks/loud.py").write_text(LOUD)
    (folder / "callbacks/__init__.py").touch()
    script = tmp_path / "bin/ragen-pl"
    script.parent.mkdir()
    script.write_text(CONSOLE_SCRIPT)
    line = ["fit", "--config", "guess_number", *SHORT]
    line += ["--trainer.callbacks+=callbacks.loud.Loud"]
    result = run_process([sys.executable, str(script), *line], folder)
    assert result.returncode == 0, result.stderr
    assert "a callback of one's own" in result.stdout
    results = json.loads((folder / "runs/guess_number/results.json").read_text())
    assert (results["status"], results["iterations"]) == ("finished", 2)
    result = run_process([sys.executable, "-m", "ragen_pl", *line, "--threads=x"], folder)
    assert result.returncode == 2  # found the modules, then
    assert "threads is x" in result.stderr


def test_the_console_script_is_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"ragen-pl": "ragen_pl.cli.entry_point:main"}
