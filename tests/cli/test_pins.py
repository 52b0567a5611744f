"""Evaluation sets are pinned: the fingerprints of a configuration's sets, and their check."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ragen_pl.cli.config.files import FOLDER, prepare
from ragen_pl.cli.configured_parts import configured_parts
from ragen_pl.cli.entry_point import main
from ragen_pl.cli.pins import pins_of
from tests.support.tiny_run import write_config

EXPERIMENTS = sorted(
    path.stem for path in (FOLDER / "experiment").glob("*.yaml") if "pins:" in path.read_text()
)
"""All but those of other packages, whose versions decide what a seed gives."""


@pytest.mark.parametrize(
    "experiment",
    [
        # Their starts are compared up to symmetry, which takes half a minute.
        pytest.param(name, marks=pytest.mark.run if name in ("rubik", "sudoku") else ())
        for name in EXPERIMENTS
    ],
)
def test_the_shipped_sets_are_pinned_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str
) -> None:
    """All of them, with the paper's, at the size that runs have by default."""
    monkeypatch.chdir(tmp_path)
    given = prepare(["fit", "--config", experiment, "--config", "paper"])
    data = configured_parts(given[1:]).datamodule
    assert pins_of(data) == dict(data.evaluation.pins)
    assert len(data.eval_sets) >= 9


def test_the_librarys_own_environments_are_pinned() -> None:
    assert {"bandit", "frozen_lake", "rubik", "sokoban", "sudoku"} <= set(EXPERIMENTS)


def test_pins_are_printed_as_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    assert main(["pins", "--config", "tiny", "--data.evaluation.size", "4"]) == 0
    printed = capsys.readouterr().out
    pin = yaml.safe_load(printed)["data"]["evaluation"]["pins"]["default"]
    assert pin.startswith("4:")
    (tmp_path / "pinned.yaml").write_text(printed)
    command = ["validate", "--config", "tiny", "--config", "pinned", "--ckpt_path", "null"]
    assert main([*command, "--data.evaluation.size", "6"]) == 0
    other = ["--data.eval_sets.default.init_args.symbols", "letters"]
    capsys.readouterr()
    assert main([*command, *other]) == 2
    told = capsys.readouterr().err
    assert "data.eval_sets.default has changed: its first 4 starts have the fingerprint 4:" in told
    assert f"but data.evaluation.pins.default is {pin}" in told
    assert main([*command, *other, "--data.evaluation.size", "3"]) == 0  # fewer than the pin


def test_a_pin_of_no_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    (tmp_path / "pinned.yaml").write_text("data: {evaluation: {pins: {defalt: null}}}")
    assert main(["pins", "--config", "tiny", "--config", "pinned"]) == 2
    told = "data.evaluation.pins.defalt is for no evaluation set; data.eval_sets has default"
    assert told in capsys.readouterr().err
    assert main(["pins", "--config", "tiny", "--data.evaluation.pins", "{default: 'abc'}"]) == 2
    assert "data.evaluation.pins.default is abc; it must be a number" in capsys.readouterr().err


def test_sets_are_merged_by_name_and_null_leaves_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {
        "data": {
            "eval_sets": {
                "reference": None,
                "wide": {"class_path": "ragen_pl.envs.Sokoban", "init_args": {"size": 8}},
            }
        }
    }
    (tmp_path / "changes.yaml").write_text(yaml.safe_dump(changes))
    given = prepare(["fit", "--config", "sokoban", "--config", "changes.yaml"])
    data = configured_parts(given[1:]).datamodule
    assert list(data.eval_sets) == ["default", "wide"]
    assert data.evaluator.evaluation_set("default").fingerprint == data.evaluation.pins["default"]
