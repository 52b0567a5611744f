"""The command ``check-env``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragen_pl.cli.entry_point import main


def test_a_healthy_environment_with_keys_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["check-env", "--env", "FrozenLake", "--env.size", "4", "--seconds", "0.2"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "env (FrozenLake)" in shown
    assert "failure" not in shown


def test_a_defect_gives_status_1_and_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tests.support.broken_envs.Hopeless"
    assert main(["check-env", "--env", name, "--json", "--seconds", "0.2"]) == 1
    page = json.loads(capsys.readouterr().out)
    failed = [each for each in page["findings"] if each["level"] == "failure"]
    assert not page["ok"]
    assert [each["check"] for each in failed] == ["expert"]
    assert failed[0]["remedy"] == "mend expert_turn, or raise max_actions"


def test_action_names_that_no_answer_can_hold_are_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every fit refuses them."""
    name = "tests.support.broken_envs.Parted"
    assert main(["check-env", "--env", name, "--json", "--seconds", "0.2"]) == 1
    (found, *_) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["check"], found["level"]) == ("actions", "failure")
    assert "an action named 'on || off'" in found["text"]


def test_what_a_configuration_allows_is_left_to_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has the same configs and options, one longer than a line among them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: None)
    (tmp_path / "my own.yaml").write_text("data: {env: {init_args: {pair: named}}}")
    given = ["--config=bandit", "-c", "my own.yaml", f"--run_dir={'long/' * 25}run"]
    assert main(["check-env", *given, "--seconds", "0.1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    command = f"--config bandit --config 'my own' --run_dir={'long/' * 25}run"
    at = next(n for n, line in enumerate(shown) if "doctor measures them:" in line)
    assert shown[at + 1].strip() == f"python run.py doctor {command}"
    assert main(["check-env", *given, "--json", "--seconds", "0.1"]) == 0
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["check"], last["level"]) == ("lengths", "note")
    assert "data.rollout.max_context" in last["text"]
    assert last["command"] == f"python run.py doctor {command}"


@pytest.mark.parametrize("kind", ["Undecided", "Counted"])
def test_actions_that_break_are_the_contracts_to_tell(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["check-env", "--env", f"tests.support.broken_envs.{kind}", "--seconds", "0.2"]
    assert main(line) == 1
    shown = capsys.readouterr()
    assert "contract" in shown.out
    assert "Traceback" not in shown.err


def test_what_an_environment_prints_is_not_in_the_json(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where a process of its own prints."""
    name = "tests.support.broken_envs.Loud"
    main(["check-env", "--env", name, "--json", "--seconds", "0.2"])
    shown, beside = capfd.readouterr()
    assert json.loads(shown)["findings"]
    assert "a step" in beside


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "check-env is given no environment"),
        (["--env", "Sokobann"], "did you mean Sokoban?"),
        (["--env", "LightsOut"], "named by module and class, such as lights_out.LightsOut"),
        (["--env", "ragen_pl.envs.Sokoban", "--env.siz", "6"], "unknown key env.init_args.siz"),
        (["--env", "ragen_pl.envs.Sokoban", "--env.size", "2"], "size: 2 is not between 6 and 10"),
        (["--env", "no_such_module.Env"], "no_such_module"),
        (["--env", "Sokoban", "--seconds", "0"], "seconds"),
        (["--env", "Sokoban", "--config", "bandit"], "bandit.yaml: give one of them"),
        (["--env"], "check-env: --env is given no value; write --env VALUE"),
        (["--env", "Sokoban", "--env.size"], "--env.size is given no value"),
        (["sokoban"], "did you mean --config sokoban?"),
    ],
)
def test_wrong_arguments_are_told_in_a_line(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-env", *args]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("class Slip(:", "SyntaxError: invalid syntax (slip.py, line 1)"),
        ("\n1 / 0", "ZeroDivisionError: division by zero (slip.py:2)"),
        ("raise ValueError('boom')", "ValueError: boom (slip.py:1)"),
        ("\n\nimport nothere", "ModuleNotFoundError: No module named 'nothere' (slip.py:3)"),
    ],
)
def test_a_slip_in_the_file_of_an_environment_is_told_in_a_line(
    text: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slip.py").write_text(text)
    assert main(["check-env", "--env", "slip.Slip"]) == 2
    shown = capsys.readouterr().err
    assert shown == f"error: env: slip.Slip cannot be imported: {told}\n"


def test_a_module_that_does_not_exist_is_told_with_the_working_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check-env", "--env", "nowhere_at_all.Env"]) == 2
    assert f"here {tmp_path}" in capsys.readouterr().err


def test_private_and_unfinished_classes_are_no_suggestions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check-env", "--env", "LightsOut"]) == 2
    known = capsys.readouterr().err.splitlines()[1]
    assert "Sokoban" in known
    assert "ReplayState" not in known
    assert "_" not in known
