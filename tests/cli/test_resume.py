"""What may change between a checkpoint and the run that continues from it; the run in the way."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ragen_pl.cli import resume
from ragen_pl.cli.resume import (
    ClaimedFolder,
    check_continuation,
    check_length,
    checkpoint_path,
    move_aside,
    read_metadata,
    way_back,
)
from ragen_pl.errors import ConfigError
from ragen_pl.training.run_folder import CHECKPOINTS, RESULTS, RunMetadata
from tests.support.lock_holder import can_be_locked, held_lock


def metadata(
    advantage: str = "GAE",
    gamma: float = 1.0,
    kl: dict[str, Any] | None = None,
    backbone: str = "separate",
    muon: dict[str, Any] | None = None,
) -> RunMetadata:
    arguments = {"gamma": gamma, "critic": {"backbone": backbone}}
    algorithm = {"advantage": {"class_path": advantage, "init_args": arguments}, "kl": kl}
    model = {
        "policy": {"hidden_size": 8},
        "algorithm": algorithm,
        "optimization": {"muon": muon},
    }
    config = {"model": model, "data": {}}
    return RunMetadata(config=config, seed=0, threads=1, vocabulary=[])


@pytest.mark.parametrize("resumes_training", [True, False])
@pytest.mark.parametrize(
    ("new", "told"),
    [
        (metadata("GRPO"), "model.algorithm.advantage.class_path is 'GRPO'"),
        (metadata(kl={"coef": 0.1}), "model.algorithm.kl is set"),
        (metadata(backbone="shared"), "critic.backbone is 'shared'"),
    ],
)
def test_what_decides_which_weights_there_are_is_fixed(
    new: RunMetadata, told: str, resumes_training: bool
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_continuation(metadata(), new, Path("last.ckpt"), resumes_training=resumes_training)


def test_a_reference_cannot_be_left_behind() -> None:
    with pytest.raises(ConfigError, match=r"model\.algorithm\.kl is null"):
        check_continuation(
            metadata(kl={"coef": 0.1}), metadata(), Path("last.ckpt"), resumes_training=True
        )


@pytest.mark.parametrize("given", [{"momentum": 0.9}, None])
def test_training_goes_on_with_the_moments_it_has(given: dict[str, float] | None) -> None:
    old, new = metadata(muon=given), metadata(muon={"momentum": 0.9} if given is None else None)
    words = "set" if given is None else "null"
    with pytest.raises(ConfigError, match=rf"model\.optimization\.muon is {words}"):
        check_continuation(old, new, Path("last.ckpt"), resumes_training=True)
    assert check_continuation(old, new, Path("last.ckpt"), resumes_training=False)


def read_from(path: str, found: str, key: str = "data.eval_sets.default") -> RunMetadata:
    """Return the metadata of a run that reads a file of questions."""
    _, _, name = key.partition(".")
    tree: dict[str, Any] = {"init_args": {"questions": path}}
    for part in reversed(name.split(".")):
        tree = {part: tree}
    return replace(_with(metadata(), **tree), data_files={f"{key}.init_args.questions": found})


def test_files_of_evaluation_sets_stay_as_they_are() -> None:
    old = read_from("q.jsonl", "60:aa")
    last = Path("last.ckpt")
    assert check_continuation(old, old, last, resumes_training=True) == []
    changed = read_from("q.jsonl", "61:bb")
    told = r"default\.init_args\.questions: q\.jsonl has other content \(60:aa → 61:bb, lines"
    with pytest.raises(ConfigError, match=rf"{told}.* since last\.ckpt\n.*put the file back"):
        check_continuation(old, changed, last, resumes_training=True)
    (line,) = check_continuation(old, changed, last, resumes_training=False)
    assert line.startswith("data.eval_sets.default.init_args.questions: q.jsonl has other content")
    # Another name of a file is told as a change of its key, and files of older checkpoints are not
    # known.
    (line,) = check_continuation(old, read_from("r.jsonl", "61:bb"), last, resumes_training=True)
    assert line == "data.eval_sets.default.init_args.questions: 'q.jsonl' → 'r.jsonl'"
    assert not check_continuation(replace(old, data_files={}), changed, last, resumes_training=True)


def test_a_changed_file_to_train_on_is_told() -> None:
    old = read_from("q.jsonl", "60:aa", "data.env")
    changed = read_from("q.jsonl", "61:bb", "data.env")
    (line,) = check_continuation(old, changed, Path("last.ckpt"), resumes_training=True)
    assert line.startswith("data.env.init_args.questions: q.jsonl has other content (60:aa → 61:bb")


def _with(old: RunMetadata, **data: Any) -> RunMetadata:
    return replace(old, config={**old.config, "data": data})


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"warm_start": {"random_turns": None}}, {"warm_start": {"random_turns": 0.5}}, "is 0.5"),
        ({"warm_start": {"random_turns": 0.5}}, {"warm_start": {"random_turns": None}}, "is None"),
        ({"env": {"class_path": "Lake"}}, {"env": None, "envs": {"a": {}}}, "data.env is null"),
        ({"env": {"a": 1}, "envs": None}, {"env": {"a": 1}, "envs": {"b": 1}}, "data.envs is set"),
    ],
)
def test_null_is_a_value_of_a_fixed_key(
    before: dict[str, Any], after: dict[str, Any], told: str
) -> None:
    old, new = _with(metadata(), **before), _with(metadata(), **after)
    with pytest.raises(ConfigError, match=told):
        check_continuation(old, new, Path("last.ckpt"), resumes_training=True)
    assert check_continuation(old, new, Path("last.ckpt"), resumes_training=False)


def test_keys_that_a_version_added_or_that_a_checkpoint_replaces_may_differ() -> None:
    old, new = metadata(), metadata()
    old = _with(old, warm_start={"iterations": 2})
    new = _with(new, warm_start={"iterations": 2, "teacher": None})
    for run, weights in ((old, "runs/before/policy/last"), (new, None)):
        run.config["model"] = {**run.config["model"], "policy": {"weights": weights}}
    changed = check_continuation(old, new, Path("x"), resumes_training=True)
    assert "model.policy.weights: 'runs/before/policy/last' → None" in changed


def test_keys_of_the_same_classes_may_change() -> None:
    changed = check_continuation(
        metadata(kl={"coef": 0.1}),
        metadata(gamma=0.9, kl={"coef": 0.2}),
        Path("x"),
        resumes_training=True,
    )
    assert changed == [
        "model.algorithm.advantage.init_args.gamma: 1.0 → 0.9",
        "model.algorithm.kl.coef: 0.1 → 0.2",
    ]


@pytest.mark.parametrize("shown", [None, CHECKPOINTS, RESULTS])
def test_an_earlier_run_comes_back_unless_the_new_one_has_something_to_show(
    tmp_path: Path, shown: str | None
) -> None:
    run_dir, claimed = tmp_path / "run", ClaimedFolder()
    (run_dir / CHECKPOINTS / "last.ckpt").mkdir(parents=True)
    claimed.claim(run_dir, resumes=False)
    (run_dir / (shown or "tensorboard")).mkdir(parents=True)
    claimed.restore()
    assert (run_dir / CHECKPOINTS / "last.ckpt").exists() == (shown is None)
    assert (tmp_path / "run.1").exists() == (shown is not None)
    assert shown is None or (run_dir / shown).exists()


@pytest.mark.parametrize("resumes", [False, True])
def test_a_run_that_is_training_keeps_its_folder(tmp_path: Path, resumes: bool) -> None:
    run_dir = tmp_path / "run"
    (run_dir / CHECKPOINTS).mkdir(parents=True)
    with held_lock(run_dir):
        claimed = ClaimedFolder()
        with pytest.raises(ConfigError, match=r"run, where process \d+ on .* is training"):
            claimed.claim(run_dir, resumes=resumes)
        claimed.restore()
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
    claimed.claim(run_dir, resumes=resumes)
    assert (tmp_path / "run.1").exists() == (not resumes)
    claimed.release()


def test_the_folder_of_a_new_run_is_held_after_the_earlier_one_was_moved(tmp_path: Path) -> None:
    run_dir, claimed = tmp_path / "run", ClaimedFolder()
    (run_dir / CHECKPOINTS).mkdir(parents=True)
    claimed.claim(run_dir, resumes=False)
    assert not can_be_locked(run_dir)
    assert can_be_locked(tmp_path / "run.1")
    claimed.release()
    assert can_be_locked(run_dir)


def test_a_process_that_was_quicker_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, claimed = tmp_path / "run", ClaimedFolder()
    (run_dir / CHECKPOINTS).mkdir(parents=True)
    with ExitStack() as others:

        def be_quicker(folder: Path) -> Path | None:
            aside = move_aside(folder)
            others.enter_context(held_lock(folder))
            (folder / "config.yaml").write_text("of the other run")
            return aside

        monkeypatch.setattr(resume, "move_aside", be_quicker)
        with pytest.raises(ConfigError, match="is training"):
            claimed.claim(run_dir, resumes=False)
        claimed.restore()
        assert (run_dir / "config.yaml").exists()
        assert (tmp_path / "run.1" / CHECKPOINTS).is_dir()
        assert not can_be_locked(run_dir)


def test_a_refused_run_leaves_no_empty_folder(tmp_path: Path) -> None:
    claimed = ClaimedFolder()
    claimed.claim(tmp_path / "run", resumes=False)
    claimed.restore()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("earlier", [False, True])
def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    run_dir, claimed = tmp_path / "run", ClaimedFolder()
    if earlier:
        (run_dir / CHECKPOINTS).mkdir(parents=True)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as changed:
        changed.setattr(Path, "rename" if earlier else "mkdir", refuse)
        with pytest.raises(ConfigError, match=r"cannot be written \(Read-only file system\)"):
            claimed.claim(run_dir, resumes=False)
    claimed.restore()
    assert run_dir.exists() == earlier


def test_the_working_directory_is_not_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / "below").mkdir()
    for here, given in (("", "."), ("below", "..")):
        monkeypatch.chdir(tmp_path / here)
        claimed = ClaimedFolder()
        with pytest.raises(ConfigError, match="where the command was started"):
            claimed.claim(Path(given), resumes=False)
        claimed.restore()
    assert (tmp_path / CHECKPOINTS).is_dir()


def test_an_earlier_run_comes_back_by_any_path_to_it(tmp_path: Path) -> None:
    run_dir, claimed = tmp_path / "run", ClaimedFolder()
    (run_dir / CHECKPOINTS).mkdir(parents=True)
    (tmp_path / "link").symlink_to("run")
    with pytest.raises(ConfigError, match="cannot be written"):
        claimed.claim(tmp_path / "link" / ".." / "run", resumes=False)
    claimed.restore()
    assert (run_dir / CHECKPOINTS).is_dir()


def test_a_run_is_not_cut_to_fewer_iterations_than_it_has(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"epoch": 2}, path)
    for allowed in (3, 4, -1, None):
        check_length(allowed, path)
    with pytest.raises(ConfigError, match=r"max_epochs is 2, but .* has 3 iterations already"):
        check_length(2, path)


def test_a_run_that_goes_on_from_an_older_checkpoint_says_so(tmp_path: Path) -> None:
    folder = tmp_path / CHECKPOINTS
    folder.mkdir()
    for name, epoch in (("best", 0), ("last", 5)):
        torch.save({"epoch": epoch, "metadata": metadata().plain()}, folder / f"{name}.ckpt")
    told = way_back(tmp_path, folder / "best.ckpt")
    assert told is not None
    assert "goes back from iteration 6 to 1" in told
    assert way_back(tmp_path, folder / "last.ckpt") is None
    (folder / "last.ckpt").write_bytes(b"damaged")
    assert way_back(tmp_path, folder / "best.ckpt") is None
    (folder / "last.ckpt").unlink()
    assert way_back(tmp_path, folder / "best.ckpt") is None


def test_a_run_that_was_killed_in_its_first_save_goes_on_from_the_best(tmp_path: Path) -> None:
    best = tmp_path / CHECKPOINTS / "best.ckpt"
    best.parent.mkdir()
    best.touch()
    assert checkpoint_path(tmp_path, "last") == best
    (previous := best.with_name("previous.ckpt")).touch()
    assert checkpoint_path(tmp_path, "last") == previous


def test_chat_is_offered_a_sound_checkpoint_by_its_path_alone(tmp_path: Path) -> None:
    torch.save({"metadata": metadata().plain()}, tmp_path / "best.ckpt")
    damaged = tmp_path / "last.ckpt"
    damaged.write_bytes((tmp_path / "best.ckpt").read_bytes()[:200])
    with pytest.raises(ConfigError) as caught:
        read_metadata(damaged, option="")
    told, offered = str(caught.value).splitlines()
    assert told.startswith(f"{damaged}: this is no readable checkpoint")
    assert offered == f"  best.ckpt is sound: {tmp_path / 'best.ckpt'}"


def test_edited_environments_and_other_packages_are_told() -> None:
    old = replace(
        metadata(),
        env_code={"data.env": "a", "data.eval_sets.default": "b"},
        versions={"torch": "2.12", "transformers": "5.0"},
    )
    new = replace(
        old,
        env_code={"data.env": "changed", "data.eval_sets.default": "b", "data.eval_sets.new": "c"},
        versions={"torch": "2.13", "transformers": "5.0"},
    )
    path = Path("last.ckpt")
    assert check_continuation(old, old, path, resumes_training=True) == []
    assert check_continuation(metadata(), new, path, resumes_training=True) == [], "an older one"
    code, version = check_continuation(old, new, path, resumes_training=True)
    assert code.startswith("the code of data.env: ")
    assert version == "torch 2.12 → 2.13"
