"""Configs are found by name, read or refused in a line, and apply by kind in whatever order."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.cli.config.files import (
    FOLDER,
    KINDS,
    config_paths,
    find_config,
    merge,
    prepare,
    read_config,
    same_class,
    shown_command,
)
from ragen_pl.cli.entry_point import main
from ragen_pl.errors import ConfigError

FREE = (
    *("diagnostics", "sft", "no_think", "rl_only", "hindsight_only"),
    *("bandit_examples", "world_model", "grounded_thoughts"),
)
"""Configs that agree with most of their kind."""
SHIPPED = [path for kind in KINDS for path in sorted((FOLDER / kind).glob("*.yaml"))]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(*given: str) -> list[str]:
    """Return the names of configs in the order in which they apply."""
    line = ["fit", *(part for name in given for part in ("--config", name))]
    return [path.stem for path in config_paths(prepare(line))]


def test_shipped_configs_lie_in_the_folder_of_their_kind() -> None:
    assert not list(FOLDER.glob("*.yaml"))
    assert {path.name for path in FOLDER.iterdir()} == set(KINDS)
    assert len({path.stem for path in SHIPPED}) == len(SHIPPED)
    assert [find_config(path.stem) for path in SHIPPED] == SHIPPED


def test_configs_of_two_kinds_apply_alike_in_either_order() -> None:
    for one, other in combinations(SHIPPED, 2):
        if one.parent != other.parent:
            assert names(one.stem, other.stem) == names(other.stem, one.stem)
            assert names(one.stem, other.stem) == [one.stem, other.stem]


def test_configs_of_one_kind_agree_or_are_refused() -> None:
    together, free = set(), set(FREE)
    for one, other in combinations(SHIPPED, 2):
        if one.parent == other.parent:
            try:
                prepare(["fit", "--config", one.stem, "--config", other.stem])
            except ConfigError:
                with pytest.raises(ConfigError, match=f"{other.name} and {one.name} are both"):
                    prepare(["fit", "--config", other.stem, "--config", one.stem])
            else:
                together.add((one.stem, other.stem))
    assert {pair for pair in together if not {*pair} & free} == {
        *(("24gb", name) for name in ("ddp", "fsdp", "hsdp", "lora", "vllm")),
        *(("ddp", name) for name in ("lora", "vllm")),
        *(("fsdp", name) for name in ("lora", "vllm")),
        *(("hsdp", name) for name in ("lora", "vllm")),
        ("lora", "vllm"),
        ("dynamic_sampling", "self_distillation"),
        ("self_distillation", "top_p"),
    }


def test_two_algorithms_are_refused_with_the_keys_they_disagree_about() -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(["fit", "--config", "sokoban", "--config", "grpo", "--config", "starpo"])
    for words in ("grpo.yaml and starpo.yaml", "algorithm", "advantage.class_path", "algorithm.kl"):
        assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2
    assert names("grpo", "grpo") == ["grpo", "grpo"]


def leaves(tree: dict[str, Any], path: str = "") -> set[str]:
    """List keys; those within a key that one algorithm sets to null count as one."""
    found = set()
    for key, value in tree.items():
        whole = f"{path}{key}"
        groups = ("data", "data.rollout", "data.rollout.rewards", "model", "model.algorithm")
        is_group = whole in (*groups, "filter")
        found |= leaves(value, f"{whole}.") if is_group else {whole}
    return found


def test_all_algorithms_set_the_same_keys() -> None:
    """But for the number of updates, which one without a ratio must not take from elsewhere."""
    algorithms = {p.stem: leaves(read_config(p)) for p in SHIPPED if p.parent.name == "algorithm"}
    assert algorithms.pop("rloo") - algorithms["ppo"] == {
        "data.rollout.online_k",
        "data.rollout.ppo_epochs",
    }
    assert set(map(frozenset, algorithms.values())) == {
        frozenset(
            {
                *(f"model.algorithm.{key}" for key in ("advantage", "policy_loss", "aggregation")),
                *("model.algorithm.kl", "model.algorithm.entropy"),
                *("data.dynamic_sampling", "data.rollout.rewards.overlong"),
                *(f"filter.{key}" for key in ("keep_fraction", "rule", "score")),
                *("filter.keep_per_group", "filter.loss_scaling"),
            }
        )
    }


def test_options_come_after_configs_wherever_they_stand() -> None:
    prepared = prepare(["--run_dir", "x", "--config", "grpo", "fit", "--a=1", "-c", "sokoban"])
    assert [Path(part).name for part in prepared] == [
        *("fit", "--config", "sokoban.yaml", "--config", "grpo.yaml"),
        *("--run_dir", "x", "--a=1"),
    ]


def test_an_options_value_is_not_taken_for_the_command() -> None:
    prepared = prepare(["--run_dir", "test", "fit", "--config", "sokoban"])
    assert [Path(part).name for part in prepared] == [
        *("fit", "--config", "sokoban.yaml", "--run_dir", "test"),
    ]


def test_a_file_of_ones_own_applies_last_unless_it_names_an_environment() -> None:
    Path("mine.yaml").write_text("filter: {keep_fraction: 1.0}")
    Path("later.yaml").write_text("data: {env: {init_args: {size: 7}}}")
    Path("game.yaml").write_text("data: {env: {class_path: Sokoban}}")
    Path("lake.yaml").write_text("data: {env: FrozenLake}")
    assert names("mine", "later", "lora", "sokoban") == ["sokoban", "lora", "mine", "later"]
    assert names("later", "mine", "lora", "sokoban") == ["sokoban", "lora", "later", "mine"]
    assert names("grpo", "game", "mine") == ["game", "grpo", "mine"]
    assert names("grpo", "lake", "game") == ["lake", "game", "grpo"]


def test_the_working_directorys_configs_come_first_flat_and_by_kind() -> None:
    for folder in ("configs", "configs/algorithm"):
        Path(folder).mkdir()
    Path("configs/algorithm/mine.yaml").write_text("filter: {keep_fraction: 0.7}")
    assert find_config("mine") == Path("configs/algorithm/mine.yaml")
    assert names("lora", "mine") == ["mine", "lora"]
    with pytest.raises(ConfigError, match=r"grpo\.yaml and mine\.yaml"):
        names("grpo", "mine")
    Path("configs/sokoban.yaml").write_text("data: {env: Sokoban}")
    assert find_config("sokoban.yaml") == Path("configs/sokoban.yaml")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("filter: {keep_fraction: 0.5}  # \xe9".encode("latin-1"), "is not text in UTF-8"),
        (b"", "is empty"),
        (b"# nothing yet\n", "is empty"),
        (b"- a\n", "holds a list"),
        (b"a: [", "is not valid YAML"),
        (b"trainer: {}\ndata: {}\ntrainer: {}\n", "bad.yaml, line 3: the key trainer is there"),
        (b"data:\n  eval_sets:\n    yes: x\n", "bad.yaml, line 3: the key yes is read"),
        (None, "is a folder"),
    ],
)
def test_a_file_that_is_no_config_is_a_short_error(
    capsys: pytest.CaptureFixture[str], content: bytes | None, told: str
) -> None:
    if content is None:
        Path("bad.yaml").mkdir()
    else:
        Path("bad.yaml").write_bytes(content)
    assert main(["fit", "--config", "sokoban", "--config", "bad.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "bad.yaml" in error
    assert told in error
    assert len(error.splitlines()) <= 3


def test_merging_goes_by_key_until_the_class_changes() -> None:
    old = {"class_path": "GAE", "init_args": {"gamma": 0.9, "critic": {"lr": 1}}}
    same = {
        "class_path": "ragen_pl.algorithms.estimators.GAE",
        "init_args": {"critic": {"backbone": "separate"}},
    }
    assert merge(old, same)["init_args"] == {
        "gamma": 0.9,
        "critic": {"lr": 1, "backbone": "separate"},
    }
    assert merge(old, {"init_args": {"gamma": 1.0}})["init_args"]["critic"] == {"lr": 1}
    other = {"class_path": "BiLevelGAE"}
    assert merge(old, other) == other


def test_a_class_is_the_same_by_any_of_its_names() -> None:
    assert same_class("GAE", "ragen_pl.algorithms.estimators.GAE")
    assert same_class(
        "ragen_pl.algorithms.estimators.trajectory.GAE", "ragen_pl.algorithms.estimators.GAE"
    )
    assert not same_class("ragen_pl.algorithms.estimators.GAE", "somewhere.else.GAE")
    assert not same_class("GAE", "BiLevelGAE")
    assert not same_class(None, "GAE")


def test_a_command_is_shown_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config by its name where that finds it; another of its name comes first here."""
    monkeypatch.setattr("shutil.which", lambda _: "/bin/ragen-pl")
    (tmp_path / "grpo.yaml").write_text("filter: {keep_fraction: 1.0}")
    shipped = str(FOLDER / "algorithm" / "grpo.yaml")
    given = [
        "--config",
        str(FOLDER / "experiment" / "sokoban.yaml"),
        "--config",
        shipped,
        "--a=b c",
    ]
    shown = f"--config sokoban --config {shipped} '--a=b c'"
    assert shown_command("doctor", given) == f"ragen-pl doctor {shown}"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert shown_command("play", ["runs/a"]) == "python run.py play runs/a"
    assert shown_command("fit", ["--config", "nowhere"]).endswith("--config nowhere")
