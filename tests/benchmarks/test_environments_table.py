"""The command that measures every environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.environments import (
    BEGIN,
    DOCS,
    END,
    Configuration,
    main,
    measure,
    put_into,
    read_configurations,
)
from ragen_pl.errors import ConfigError
from ragen_pl.report.tables import PolicyResult
from ragen_pl.training.evaluation import summarize
from tests.support.doubles import make_group
from tests.support.lamps import Lamp


def test_players_are_measured_on_held_out_starts() -> None:
    row = measure(read_configurations()["frozen_lake"].build(), 12, 60.0)
    assert row.random is not None
    assert row.expert is not None
    assert row.random.episodes == row.expert.episodes == 12
    assert row.expert.low <= row.expert.success <= row.expert.high
    assert row.expert.success > row.random.success
    assert row.characters > row.tokens > 1  # lines of the lake are tokens


def test_a_slow_player_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    row = measure(Lamp(), 40, 0.0)
    assert row.random is not None
    assert row.random.episodes == 5


def test_the_table_grows_by_each_call(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "bandit").mkdir(parents=True)
    scores = [
        PolicyResult(policy, "default", 0.5, summarize([make_group([win], seed=i) for i in (0, 1)]))
        for policy, win in (("warm-started", 0.0), ("final", 1.0))
    ]
    content = {"evaluations": [each.to_dict() for each in scores]}
    (runs / "bandit/results.json").write_text(json.dumps(content))
    for name in ("bandit", "rubik"):
        arguments = [str(tmp_path), name, "--starts", "5", "--seconds", "0", "--runs", str(runs)]
        assert main(arguments) == 0
    bandit, rubik = (tmp_path / "environments.md").read_text().splitlines()[2:]
    assert bandit.startswith("| `bandit` | Bandit | ")
    assert "| 0 [0, 66] → 100 [34, 100] |" in bandit
    assert rubik.startswith("| `rubik`, 2×2×2, 1 to 5 turns | Rubik | ")


def test_a_missing_package_leaves_its_rows_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(self: environments.Configuration) -> None:
        raise ConfigError("reasoning-gym is not installed")

    monkeypatch.setattr(environments.Configuration, "build", missing)
    assert main([str(tmp_path), "countdown"]) == 0
    assert "countdown: left out, reasoning-gym is not installed" in capsys.readouterr().out


def test_what_an_environment_says_is_told_without_the_parser_s_words() -> None:
    wrong = {"class_path": "ragen_pl.envs.Sokoban", "init_args": {"size": 2}}
    with pytest.raises(ConfigError) as told:
        Configuration("sokoban", wrong).build()
    assert "size" in str(told.value)
    assert "Union subtypes" not in str(told.value)


def test_the_docs_have_a_place_for_the_table() -> None:
    page = DOCS.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    assert put_into(page, "new") == f"{before}{BEGIN}\n\nnew\n\n{END}{rest.partition(END)[2]}"
    with pytest.raises(ConfigError, match="has no table"):
        put_into("nothing", "new")
