"""The complete configuration of docs/environments.md runs, and its snippets are configurations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from ragen_pl.cli.entry_point import main
from tests.support.tiny_run import ROOT

PAGE = ROOT / "docs" / "environments.md"
SNIPPETS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
SMALL = (
    *("--trainer.max_epochs=2", "--data.warm_start.iterations=1", "--data.evaluation.size=4"),
    *("--data.warm_start.demonstrations=20", "--data.rollout.num_groups=2", "--threads=1"),
    *("--data.rollout.group_size=4",),
)


def test_the_complete_configuration_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_lake.yaml").write_text(SNIPPETS[0], encoding="utf-8")
    assert main(["fit", "--config", "my_lake.yaml", *SMALL]) == 0, capsys.readouterr().err
    results = json.loads(Path("runs/my_lake/results.json").read_text("utf-8"))
    assert (results["status"], results["iterations"]) == ("finished", 2)


def test_the_other_snippets_show_data_env_alone() -> None:
    for snippet in SNIPPETS[1:]:
        assert set(yaml.safe_load(snippet)["data"]) == {"env"}, snippet
