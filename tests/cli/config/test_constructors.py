"""A constructor of a user's class that fails is told in one line, with the place in its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.cli.config.constructors import ConstructorError, construct
from ragen_pl.cli.entry_point import main
from ragen_pl.envs import Sokoban
from tests.support.tiny_run import write_config

_FAULTY = """
import argparse, json, sys
from lightning.pytorch import Callback
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.envs import Sokoban
from ragen_pl.rollout.rewards import Format

class Env(Sokoban):
    def __init__(self, size: int = 6) -> None:
        super().__init__(size)
        {}["rooms"]

class Reader(Sokoban):
    def __init__(self) -> None:
        super().__init__()
        json.loads("{")

class Choosy(Sokoban):
    def __init__(self, size: int = 6) -> None:
        raise ValueError(f"size: {size} is too small")

class Term(Format):
    def __init__(self) -> None:
        1 / 0

class Watcher(Callback):
    def __init__(self) -> None:
        int("x")

class Estimator(GRPO):
    def __init__(self) -> None:
        raise RuntimeError

class Leaver(Sokoban):
    def __init__(self, code: int = 3) -> None:
        sys.exit(code)

class LeavingWatcher(Callback):
    def __init__(self) -> None:
        argparse.ArgumentParser(prog="mine").parse_args(["--unknown"])

class Importer(Sokoban):
    def __init__(self) -> None:
        import leaving
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    (made / "faulty.py").write_text(_FAULTY)
    (made / "leaving.py").write_text("raise SystemExit\n")
    write_config(made)
    return made


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--data.env=faulty.Env"], "faulty.Env cannot be built: KeyError: 'rooms' (faulty.py:11)"),
        (["--data.eval_sets.more=faulty.Env"], "KeyError: 'rooms' (faulty.py:11)"),
        (["--data.env=faulty.Reader"], "(char 1) (faulty.py:16)"),
        (["--data.env=faulty.Choosy"], "error: size: 6 is too small"),
        (["--data.rollout.rewards.own=faulty.Term"], "ZeroDivisionError: division by zero (faulty"),
        (["--trainer.callbacks=faulty.Watcher"], "faulty.Watcher cannot be built: ValueError: inv"),
        (["--trainer.callbacks+=faulty.Watcher"], "with base 10: 'x' (faulty.py:28)"),
        (["--model.algorithm.advantage=faulty.Estimator"], "built: RuntimeError (faulty.py:32)"),
    ],
)
def test_a_fault_in_a_constructor_is_told_in_one_line(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--config", "tiny.yaml", *args]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


def test_check_env_tells_it_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "--env", "faulty.Env"]) == 2
    told = "error: faulty.Env cannot be built: KeyError: 'rooms' (faulty.py:11)\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ["fit", "--config", "tiny.yaml", "--data.env=faulty.Leaver"],
            "faulty.Leaver cannot be built: it ends the program, sys.exit(3) (faulty.py:36)\n",
        ),
        (
            ["fit", "--config", "tiny.yaml", "--data.eval_sets.more=faulty.Leaver"],
            "faulty.Leaver cannot be built: it ends the program, sys.exit(3) (faulty.py:36)\n",
        ),
        (
            ["check-env", "--env", "faulty.Leaver", "--env.code", "4"],
            "faulty.Leaver cannot be built: it ends the program, sys.exit(4) (faulty.py:36)\n",
        ),
        (
            ["plan", "--config", "tiny.yaml", "--trainer.callbacks+=faulty.LeavingWatcher"],
            "faulty.LeavingWatcher cannot be built: it ends the program, sys.exit(2) (faulty.py:40)"
            "\n",
        ),
        (
            ["check-env", "--env", "faulty.Importer"],
            "leaving cannot be imported: it ends the program, sys.exit(0) (leaving.py:1)\n",
        ),
    ],
)
def test_a_constructor_that_ends_the_program_is_told(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    assert f"error: {told}" in capsys.readouterr().err


def test_a_fault_of_this_package_keeps_its_traceback() -> None:
    with pytest.raises(TypeError):
        construct(Sokoban, size="six")
    with pytest.raises(ValueError, match="size: 3 is not between"):
        construct(Sokoban, size=3)


def test_a_constructor_of_another_library_needs_no_place() -> None:
    with pytest.raises(ConstructorError, match=r"^pathlib\.Path cannot be built: TypeError: "):
        construct(Path, 3)
