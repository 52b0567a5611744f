"""``run.py play``: by pipe and on a terminal, for a person and for somebody who watches."""

from __future__ import annotations

import copy
import io
import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ragen_pl.cli.entry_point import main
from tests.support.tiny_run import CONFIG, ROOT, command, environment, write_config
from tests.support.toy_env import Stairs

SHIPPED = ("sokoban", "sokoban_two_boxes", "frozen_lake", "bandit")


class Hostile(Stairs):
    """Writes what a terminal would obey."""

    instruction = "Press. \x1b]0;owned\x07 [red]markup[/red] \u202e"

    def render_text(self) -> str:
        return super().render_text() + "\x1b[2J\r" + "x" * 50_000


class Failing(Stairs):
    """Fails at one seed."""

    def reset(  # type: ignore[no-untyped-def]
        self, *, seed=None, options=None
    ):
        self.is_broken = seed == 7
        return super().reset(seed=seed, options=options)

    def step(self, action: str):  # type: ignore[no-untyped-def]
        if self.is_broken:
            raise RuntimeError("broken \x1b[31m")
        return super().step(action)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Return a function that runs the command with typed lines and returns what it printed."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)

    def run(*args: str, typed: str = "", config: str = "tiny.yaml") -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        status = main(["play", "--config", config, *args])
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out  # no control codes in a pipe
        return printed.out if status == 0 else printed.err

    return run


def toy(folder: Path, name: str) -> str:
    config: dict[str, Any] = copy.deepcopy(CONFIG)
    config["data"]["env"] = {"class_path": f"{__name__}.{name}"}
    config["data"]["eval_sets"] = {"default": {"class_path": f"{__name__}.{name}"}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return f"{name}.yaml"


def test_a_person_plays_with_hints_and_is_told_the_rewards(play) -> None:  # type: ignore[no-untyped-def]
    text = play(
        "--seed=3", typed="/hint\n/state\nfly\n<think>?</think><answer>Up</answer>\n/quit\n"
    )
    assert "expert   <think>" in text
    assert '"boxes"' in text
    assert "'fly' is not among the actions: Up, Down, Left, Right" in text
    assert "played   Up (valid, untrue thought)" in text
    assert "reward   env -0.1" in text
    assert max(len(line) for line in text.splitlines() if "{" not in line) <= 80


def test_the_expert_is_watched_to_the_end_from_an_evaluation_start(play) -> None:  # type: ignore[no-untyped-def]
    text = play("--player=expert", "--eval_set=default", "--games=2", "--delay=0")
    assert "default 0 (seed 4278190080)" in text
    assert "default 1 (seed 4278190081)" in text
    assert text.count("return ") == 2
    assert "thought  " in text
    assert "answer   " in text


def test_the_same_start_again_and_the_next_one(play) -> None:  # type: ignore[no-untyped-def]
    text = play("--seed=5", typed="up\n/again\n/next\n")
    assert re.findall(r"seed (\d+)", text) == ["5", "5", "6"]


def test_the_prompt_is_the_agents_token_for_token(play) -> None:  # type: ignore[no-untyped-def]
    text = play("--view=prompt", typed="u\n")
    assert "<|system|>Sokoban: push every box onto a target." in text
    assert "######<|end|><|assistant|><think>" in text
    assert text.count("<|system|>") == 1  # later turns show what they add


def test_an_untrained_policy_and_a_random_player_are_watched(play) -> None:  # type: ignore[no-untyped-def]
    text = play("--player=policy", "--temperature=1")
    assert "policy: untrained weights, temperature 1" in text
    assert "(invalid: cut off at the token limit" in text
    assert "not solved" in play("--player=random")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_environment_is_played(play, name: str) -> None:  # type: ignore[no-untyped-def]
    assert "return " in play("--player=expert", config=name)


def test_a_hostile_environment_controls_nothing(play, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = play(typed="on\n/state\n", config=toy(tmp_path, "Hostile"))
    assert "␛]0;owned␇ [red]markup[/red] ⟨U+202E⟩" in " ".join(text.split())
    assert "␛[2J␍" in text
    assert "more characters" in text


def test_log_lines_do_not_control_the_terminal_either(tmp_path: Path) -> None:
    toy(tmp_path, "Failing")
    done = subprocess.run(
        command("play", "--config", "Failing.yaml", "--seed=7"),
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
        input="on\n",
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert "broken ␛[31m" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_failing_environment_ends_its_game(play, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = play("--seed=7", typed="on\n", config=toy(tmp_path, "Failing"))
    assert "not solved: the environment failed" in text
    assert "RuntimeError: broken ␛[31m" in text


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--eval_set=nowhere"], "--eval_set is nowhere"),
        (["--games=0"], "--games is 0"),
        (["--ckpt_path=last"], "there is no"),
        (["no_run"], "no_run, which is no run"),
        (["--player=nobody"], "invalid choice"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(play, args: list[str], told: str) -> None:  # type: ignore[no-untyped-def]
    text = play(*args)
    assert text.startswith("error: ")
    assert told in text
    assert len(text.splitlines()) <= 3


def test_on_a_terminal_the_board_is_colored_and_enter_goes_on(tmp_path: Path) -> None:
    write_config(tmp_path)
    shown = _on_a_terminal(
        command("play", "--config", "tiny.yaml", "--player=expert"), tmp_path, "\n\n\n\n/quit\n"
    )
    assert "\x1b[38;2;" in shown  # cells in colors
    assert "▀" in shown
    assert "Enter for the next" in shown
    assert "Traceback" not in shown


def _on_a_terminal(line: list[str], folder: Path, typed: str) -> str:
    """Run a command on a terminal of its own; return what it showed."""
    ours, theirs = pty.openpty()
    env = {**environment(), "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "80"}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(
        line, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        ready, _, _ = select.select([ours], [], [], 1.0)
        try:
            part = os.read(ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        shown += part
        if not part and process.poll() is not None:
            break
    process.kill()
    process.wait()
    os.close(ours)
    return shown.decode(errors="replace")
