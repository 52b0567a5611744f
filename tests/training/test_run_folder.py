"""Check what may change between a checkpoint and the run that goes on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.training.run_folder import (
    CHECKPOINTS,
    RESULTS,
    EarlierRun,
    RunMetadata,
    check_continuation,
    finished_iterations,
    is_of,
)


def facts(
    advantage: str = "GAE",
    gamma: float = 1.0,
    kl: dict[str, Any] | None = None,
    backbone: str = "separate",
) -> RunMetadata:
    arguments = {"gamma": gamma, "critic": {"backbone": backbone}}
    algorithm = {"advantage": {"class_path": advantage, "init_args": arguments}, "kl": kl}
    config = {"model": {"policy": {"hidden_size": 8}, "algorithm": algorithm}, "data": {}}
    return RunMetadata(config=config, seed=0, threads=1, vocabulary=[])


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(
    ("new", "told"),
    [
        (facts("GRPO"), "model.algorithm.advantage.class_path is 'GRPO'"),
        (facts(kl={"coef": 0.1}), "model.algorithm.kl is set"),
        (facts(backbone="shared"), "critic.backbone is 'shared'"),
    ],
)
def test_what_decides_which_weights_there_are_is_fixed(
    new: RunMetadata, told: str, goes_on: bool
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_continuation(facts(), new, Path("last.ckpt"), goes_on=goes_on)


def test_a_reference_cannot_be_left_behind() -> None:
    with pytest.raises(ConfigError, match=r"model\.algorithm\.kl is null"):
        check_continuation(facts(kl={"coef": 0.1}), facts(), Path("last.ckpt"), goes_on=True)


def test_keys_of_the_same_classes_may_change() -> None:
    changed = check_continuation(
        facts(kl={"coef": 0.1}), facts(gamma=0.9, kl={"coef": 0.2}), Path("x"), goes_on=True
    )
    assert changed == [
        "model.algorithm.advantage.init_args.gamma: 1.0 → 0.9",
        "model.algorithm.kl.coef: 0.1 → 0.2",
    ]


@pytest.mark.parametrize("shown", [None, CHECKPOINTS, RESULTS])
def test_an_earlier_run_comes_back_unless_the_new_one_has_something_to_show(
    tmp_path: Path, shown: str | None
) -> None:
    run_dir, earlier = tmp_path / "run", EarlierRun()
    (run_dir / CHECKPOINTS / "last.ckpt").mkdir(parents=True)
    earlier.move_aside(run_dir)
    (run_dir / (shown or "tensorboard")).mkdir(parents=True)
    earlier.load_full_state()
    assert (run_dir / CHECKPOINTS / "last.ckpt").exists() == (shown is None)
    assert (tmp_path / "run.1").exists() == (shown is not None)
    assert shown is None or (run_dir / shown).exists()


def test_a_checkpoint_is_of_the_run_in_whose_folder_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("disk", "runs/a/checkpoints", "runs/ab/checkpoints"):
        Path(name).mkdir(parents=True)
    Path("disk/last.ckpt").touch()
    Path("runs/b").mkdir()
    Path("runs/b/checkpoints").symlink_to(tmp_path / "disk")
    Path("link").symlink_to(tmp_path / "runs/a")
    last = Path("checkpoints/last.ckpt")
    assert is_of(Path("runs/a"), tmp_path / "runs/a" / last)
    assert is_of(Path("link"), "runs/a" / last)
    assert is_of(Path("runs/a"), "link" / last)
    assert is_of(Path("runs/b"), "runs/b" / last)
    assert is_of(Path("runs/b"), Path("disk/last.ckpt"))
    assert not is_of(Path("runs/a"), "runs/ab" / last)
    assert not is_of(Path("runs/a"), "runs/a/../b" / last)


@pytest.mark.parametrize(
    ("content", "length"),
    [
        ({"status": "finished", "evaluations": [{"policy": "final"}]}, 7),
        ({"status": "finished", "evaluations": [{"policy": "expert"}]}, None),
        ({"status": "interrupted", "evaluations": [{"policy": "final"}]}, None),
        (["something else"], None),
    ],
)
def test_a_run_is_finished_when_its_final_policy_was_scored(
    tmp_path: Path, content: Any, length: int | None
) -> None:
    assert finished_iterations(tmp_path) is None
    whole = content | {"iterations": 7} if isinstance(content, dict) else content
    (tmp_path / RESULTS).write_text(json.dumps(whole))
    assert finished_iterations(tmp_path) == length
    (tmp_path / RESULTS).write_text(json.dumps(whole)[:-1])  # cut off
    assert finished_iterations(tmp_path) is None
