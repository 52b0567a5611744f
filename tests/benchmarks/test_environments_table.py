"""The command that measures every environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.environments import (
    DOCS,
    MEASURED,
    TRAINED,
    Configuration,
    earlier_cells,
    main,
    measure,
    measured_table,
    other_settings,
    put_into,
    read_configurations,
)
from benchmarks.trained_environments import (
    Seed,
    Success,
    Trained,
    add_runs,
    read_record,
    trained_of,
    trained_table,
)
from ragen_pl.errors import ConfigError
from ragen_pl.training.evaluation.results import PolicyResult, summarize
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


def finished_run(folder: Path, *policies: tuple[str, float, float]) -> None:
    """Write the results of a run: (policy, temperature, share of two starts that it solves)."""
    scores = [
        PolicyResult(
            policy,
            eval_set,
            temperature,
            summarize(
                [make_group([win], seed=i) for i, win in enumerate((share > 0, share > 0.5))]
            ),
        )
        for policy, temperature, share in policies
        for eval_set in ("default", "other")
    ]
    folder.mkdir(parents=True)
    content = {
        **{"status": "finished", "iterations": 3, "seconds": 39.6},
        "evaluations": [each.to_dict() for each in scores],
    }
    (folder / "results.json").write_text(json.dumps(content))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of its own, which no test shares with the repository."""
    path = tmp_path / "record.yaml"
    monkeypatch.setattr(environments, "read_record", lambda: read_record(path))
    monkeypatch.setattr(environments, "add_runs", lambda runs: add_runs(runs, path))
    return path


def test_the_table_grows_by_each_call(tmp_path: Path, record: Path) -> None:
    runs = tmp_path / "runs"
    finished_run(runs / "bandit", ("warm-started", 0.5, 0.0), ("final", 0.5, 1.0))
    for name in ("bandit", "rubik"):
        arguments = [str(tmp_path), name, "--starts", "5", "--seconds", "0", "--runs", str(runs)]
        assert main(arguments) == 0
    bandit, rubik = (tmp_path / "environments.md").read_text().splitlines()[2:]
    assert bandit.startswith("| `bandit` | Bandit | ")
    assert "| 0 [0, 66] → 100 [34, 100] |" in bandit
    assert rubik.startswith("| `rubik`, 2×2×2, 1 to 5 turns | Rubik | ")
    assert rubik.split(" | ")[4] == "–"


def test_settings_that_a_config_changes_are_marked_and_told(tmp_path: Path) -> None:
    env = {"class_path": "ragen_pl.envs.Sokoban", "init_args": {"size": 8}}
    row = Configuration("large", env)
    trained = {"size": 8, "num_boxes": 1, "max_actions": 20, "split": "eval"}
    config = {"data": {"eval_sets": {"default": {**env, "init_args": trained}, "b": {}}}}
    (tmp_path / "large.yaml").write_text(json.dumps(config))
    assert other_settings(row, tmp_path) == ["`max_actions: 20` (here 10)"]
    known = read_configurations()
    earlier = earlier_cells(DOCS.read_text(encoding="utf-8"))
    rows = {name: known[name] for name in ("sokoban", "web_shop", "gsm_symbolic")}
    text = measured_table(
        rows, {}, dict.fromkeys(("sokoban", "web_shop"), Trained(Success(50))), earlier
    )
    *_, same, other, untrained, _, told = text.splitlines()
    assert "| 50 |" in same
    assert "| 50 † |" in other
    assert "| – |" in untrained
    assert told == (
        "† Trained under other settings: `web_shop` `products: 2000` (here 200), "
        "`results_per_page: 4` (here 10), `max_actions: 9` (here 15)."
    )


def test_a_new_run_keeps_the_label_and_a_known_one_its_note(tmp_path: Path) -> None:
    path, runs = tmp_path / "record.yaml", tmp_path / "runs"
    path.write_text("sudoku: {final: [10.0], label: A, note: B}\nother: {final: [1, 0, 2]}\n")
    finished_run(
        runs / "sudoku",
        *(("warm-started", 0.5, 0.0), ("warm-started", 0.0, 0.0)),
        *(("final", 0.5, 0.5), ("final", 1.0, 0.0), ("final", 0.0, 1.0)),
    )
    (runs / "unfinished").mkdir()
    found = add_runs(runs, path)
    assert found == read_record(path)
    assert found["other"] == Trained(Success(1, 0, 2))
    assert found["sudoku"] == Trained(
        final=Success(50.0, 9.5, 90.5),
        seconds=40,
        imitated=Success(0.0, 0.0, 65.8),
        greedy=(0.0, 100.0),
        label="A",
    )
    by_hand = path.read_text().replace("label: A", "label: A\n  note: beside others")
    path.write_text(by_hand)
    assert add_runs(runs, path)["sudoku"].note == "beside others", "the same run again"


def test_further_seeds_stand_beside_the_first(tmp_path: Path) -> None:
    path, runs = tmp_path / "record.yaml", tmp_path / "runs"
    path.write_text("sudoku: {final: [10.0], imitated: [5.0], label: A}\n")
    policies = ("warm-started", 0.5, 0.0), ("final", 0.5, 0.5), ("final", 0.0, 1.0)
    finished_run(runs / "sudoku.seed2", *policies)
    add_runs(runs, path)
    (runs / "sudoku.seed2").rename(runs / "sudoku.seed1")
    found = add_runs(runs, path)
    assert found == read_record(path)
    assert list(found["sudoku"].seeds) == [1, 2]
    assert found["sudoku"].seeds[1] == Seed(50.0, 0.0, 100.0)
    assert found["sudoku"].final == Success(10.0)
    *_, row = trained_table(found).splitlines()
    assert "| A | 5.0 % | 10.0 % | – | 0.0 → 50.0 % (100.0); 0.0 → 50.0 % (100.0) | – |" in row
    finished_run(runs / "sudoku", *policies)
    assert list(add_runs(runs, path)["sudoku"].seeds) == [1, 2]


def test_a_run_whose_final_policy_was_not_scored_is_left_out(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", ("warm-started", 0.5, 1.0))
    assert trained_of(tmp_path / "run") is None


def test_what_training_reached_is_bold_where_it_is_beyond_the_intervals() -> None:
    rows = {
        "clear": Trained(
            Success(80, 70, 90),
            1200,
            Success(50, 40, 60),
            (51.0, 82.0),
            note="alone",
            seeds={2: Seed(79)},
        ),
        "near": Trained(Success(60, 50, 70), imitated=Success(50, 40, 60)),
        "unknown": Trained(Success(80, 70, 90), imitated=Success(50), greedy=(None, 9.0)),
        "untaught": Trained(Success(80, 70, 90), label="*x*"),
    }
    assert trained_table(rows).splitlines()[2:] == [
        "| `clear.yaml` | 50.0 % [40.0, 60.0] | **80.0 %** [70.0, 90.0] | 51.0 → 82.0 % "
        "| 79.0 % | 1,200, alone |",
        "| `near.yaml` | 50.0 % [40.0, 60.0] | 60.0 % [50.0, 70.0] | – | – | – |",
        "| `unknown.yaml` | 50.0 % | 80.0 % [70.0, 90.0] | 9.0 % | – | – |",
        "| *x* | – | 80.0 % [70.0, 90.0] | – | – | – |",
    ]


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


def test_the_docs_have_a_place_for_both_tables() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for marks in (MEASURED, TRAINED):
        before, _, rest = page.partition(marks[0])
        after = rest.partition(marks[1])[2]
        assert put_into(page, "new", marks) == f"{before}{marks[0]}\n\nnew\n\n{marks[1]}{after}"
        with pytest.raises(ConfigError, match="has no table"):
            put_into("nothing", "new", marks)


def test_the_docs_tell_what_the_record_says() -> None:
    """Rows that are not measured anew keep their cells, so that this needs no environment."""
    page = DOCS.read_text(encoding="utf-8")
    record = read_record()
    rows = measured_table(read_configurations(), {}, record, earlier_cells(page))
    assert put_into(put_into(page, rows, MEASURED), trained_table(record), TRAINED) == page
    assert len(earlier_cells(page)) >= 20
