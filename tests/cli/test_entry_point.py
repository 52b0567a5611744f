"""Commands, their help, and what they refuse before anything is computed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from ragen_pl.cli.config.files import COMMANDS, find_config, prepare
from ragen_pl.cli.entry_point import main
from ragen_pl.errors import ConfigError
from tests.support.refused_command import fails
from tests.support.tiny_run import ROOT, run, run_process

GROUPS = (
    *("seed_everything", "run_dir", "threads", "model", "data", "filter", "echo_trap"),
    *("rollback", "entropy", "results", "checkpoints", "trajectories", "display", "report"),
)


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("command", ["plan", "pins", "fit"])
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--trainer.max_steps=9", "trainer.max_steps is 9"),
        ("--trainer.max_epochs=0", "trainer.max_epochs is 0"),
        ("--trainer.check_val_every_n_epoch=0", "trainer.check_val_every_n_epoch is 0"),
        ("--trainer.gradient_clip_val=1", "trainer.gradient_clip_val is 1"),
        ("--trainer.precision=16", "trainer.precision is 16"),
        ("--trainer.precision=bf16-true", "trainer.precision is bf16-true"),
        ("--trainer.strategy=fspd", "trainer.strategy is fspd"),
    ],
)
def test_plan_and_pins_refuse_the_trainers_keys_that_fit_refuses(
    capsys: pytest.CaptureFixture[str], command: str, option: str, told: str
) -> None:
    assert main([command, "--config", "tiny.yaml", option]) == 2
    assert f"error: {told}" in capsys.readouterr().err


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "option",
    [
        "--trainer.strategy=fsdp_cpu_offload",
        "--trainer.strategy={class_path: lightning.pytorch.strategies.ModelParallelStrategy}",
    ],
)
def test_plan_refuses_the_strategies_of_lightning_that_no_run_has(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["plan", "--config", "tiny.yaml", option]) == 2
    assert "set trainer.strategy to fsdp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "a command is missing"),
        (["--threads", "1"], "a command is missing"),
        (["ft"], "did you mean fit"),
        (["Fit"], "did you mean fit"),
        (["train", "--config", "nowhere"], "did you mean fit"),
        (["export"], "policy/last"),
        (["fit"], "data.env"),
    ],
)
def test_a_command_is_asked_for(
    capsys: pytest.CaptureFixture[str], argv: list[str], told: str
) -> None:
    assert main(argv) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["--config", "sokoban", "--help"]])
def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert main(argv) == 0
    page = capsys.readouterr().out
    assert re.findall(r"^  ([\w-]+)  ", page, re.MULTILINE) == list(COMMANDS)


def test_the_version_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ragen-pl ")


@pytest.mark.usefixtures("config")
def test_the_folder_of_a_run_is_no_argument_of_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("threads: 1")
    assert "given as --run_dir run, with its --config run/config.yaml" in fails(capsys, "run")


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("command", ["fit", "validate"])
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_computed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [command, "--config", "tiny.yaml", "--run_dir", "tiny.yaml/run"]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: run_dir is tiny.yaml/run, but ")
    assert "tiny.yaml is a file" in error


@pytest.mark.parametrize("command", ["fetch", "new", "pins"])
def test_a_command_has_its_own_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: run.py {command} ")


@pytest.mark.usefixtures("config")
def test_a_bad_command_ends_with_status_2_and_leaves_an_earlier_run_alone(tmp_path: Path) -> None:
    (tmp_path / "runs" / "tiny" / "checkpoints").mkdir(parents=True)
    result = run(tmp_path, "fit", "--config", "tiny", "--filter.kep_fraction", "0.5")
    assert result.returncode == 2
    assert result.stdout == ""
    assert (tmp_path / "runs" / "tiny" / "checkpoints").is_dir()
    assert not (tmp_path / "runs" / "tiny.1").exists()


def test_configs_are_found_by_name_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("sokoban") == find_config("sokoban.yaml")
    shutil.copyfile(find_config("sokoban"), tmp_path / "sokoban.yaml")
    assert find_config("sokoban.yaml") == Path("sokoban.yaml")
    with pytest.raises(ConfigError, match="did you mean frozen_lake"):
        find_config("frozenlake.yaml")


def test_the_command_may_come_after_its_options() -> None:
    prepared = prepare(["--config=bandit", "fit", "-c", "grpo", "--run_dir", "x"])
    assert prepared[0] == "fit"
    assert [Path(arg).name for arg in prepared[1:]] == [
        "--config",
        "bandit.yaml",
        "--config",
        "grpo.yaml",
        "--run_dir",
        "x",
    ]


@pytest.mark.parametrize("module", ["ragen_pl", "ragen_pl.cli.entry_point"])
def test_the_package_is_a_command_too(module: str) -> None:
    result = run_process([sys.executable, "-m", module, "fitt"], ROOT)
    assert result.returncode == 2
    assert "did you mean fit" in result.stderr


def test_every_key_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help"])
    entries = re.split(r"\n  (?=-)", capsys.readouterr().out)
    own = [entry for entry in entries if re.match(rf"--(?:{'|'.join(GROUPS)})\b", entry)]
    assert len(own) > 60
    for entry in own:
        words = entry.partition("(type:")[0].partition("(required")[0].split()[1:]
        said = [word for word in words if not re.fullmatch(r"[A-Z_.\[\]{},|'a-z]*[A-Z]{3}.*", word)]
        assert said, f"no help for {entry.splitlines()[0]}"
