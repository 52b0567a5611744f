"""What a command continues from: its checkpoint, its folder, the changes that are allowed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_pl.errors import ConfigError
from ragen_pl.report.side_by_side import leaves
from ragen_pl.runtime.durable_files import REPLACED
from ragen_pl.runtime.folder_lock import LOCK, FolderLock
from ragen_pl.training.run_folder import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    PREVIOUS,
    RESULTS,
    RunMetadata,
    iterations_of,
)

_WEIGHTS = (
    "model.policy",
    "model.lora",
    "model.algorithm.advantage.class_path",
    "model.algorithm.advantage.init_args.critic.backbone",
)
"""Keys that decide which weights exist: those of the policy and of a critic."""
_NULLABLE = ("model.algorithm.kl", "model.lora")
"""Keys that decide, by being null or not, whether weights of a reference and adapters exist."""
_NULLABLE_IN_TRAINING = (*_NULLABLE, "model.optimization.muon", "data.env", "data.envs")
"""Keys that decide, by being null or not, which weights and moments a resumed training needs, and
whether it plays one environment or a mixture."""
_LOADED = {"model.policy.weights", "model.policy.init_args.weights"}
"""Keys that only say where a new run's weights come from: a checkpoint has its own."""
_EVAL_SETS = "data.eval_sets."
_FIXED = (*_WEIGHTS, "seed", "data.env", "data.envs", "data.prompts", "data.warm_start")
"""Keys that a resumed training must share with the run before; all others may change."""


def checkpoint_path(run_dir: Path, wanted: str) -> Path:
    """Resolve ``last``, ``best``, ``previous`` or a path.

    Raises:
        ConfigError: when there is no such checkpoint.
    """
    if wanted in (LAST, BEST, PREVIOUS):
        path = run_dir / CHECKPOINTS / f"{wanted}.ckpt"
        # Folders are replaced in two steps: a run that was killed in between left the one before.
        # One that was killed in its first save of the last policy may have saved the best one.
        before = [path.with_name(f"{PREVIOUS}.ckpt")] if wanted == LAST else []
        only = [path.with_name(f"{BEST}.ckpt")] if wanted == LAST else []
        for candidate in (path, *before, path.with_suffix(REPLACED), *only):
            if candidate.exists():
                return candidate
        found = sorted(str(p) for p in run_dir.glob(f"{CHECKPOINTS}/*.ckpt"))
        hint = (
            f"there is {', '.join(found)}"
            if found
            else "check --run_dir, or train a run first: fit, without it"
        )
        raise ConfigError(f"--ckpt_path {wanted}: there is no {path}\n  {hint}")
    if not Path(wanted).exists():
        raise ConfigError(
            f"--ckpt_path {wanted}: there is no such file; give last, best, previous or the path "
            "of a .ckpt"
        )
    return Path(wanted)


def way_back(run_dir: Path, loaded: Path) -> str | None:
    """Return what is to be told of a run that goes on from an older checkpoint than its last."""
    last = run_dir / CHECKPOINTS / f"{LAST}.ckpt"
    if loaded.resolve() == last.resolve():  # which was read already, whole
        return None
    try:
        RunMetadata.read(last)
    except ConfigError:  # none, or a damaged one, which may be the reason to take another
        return None
    first, end = iterations_of(loaded), iterations_of(last)
    if first >= end:
        return None
    return (
        f"goes back from iteration {end} to {first}, and will replace {last}: --ckpt_path last "
        "goes on from there, and with another --run_dir both remain"
    )


def read_metadata(path: Path, option: str = "--ckpt_path ") -> RunMetadata:
    """Read a checkpoint's metadata, after a check that all of the checkpoint is there.

    Args:
        option: What the command line has before the path of a checkpoint.

    Raises:
        ConfigError: when it is damaged or foreign; the message offers a sound one beside it.
    """
    try:
        return RunMetadata.read(path)
    except ConfigError as error:
        told = str(error).replace("--ckpt_path ", option, 1)
        raise ConfigError(f"{told}\n  {_offer(path, option)}") from error


def _offer(path: Path, option: str) -> str:
    """Name a sound checkpoint in the folder of a refused one, and the option that takes it."""
    for name in (PREVIOUS, BEST, LAST):
        other = path.with_name(f"{name}.ckpt")
        if other != path and other.exists():
            try:
                RunMetadata.read(other)
            except ConfigError:
                continue
            is_last = path.stem == LAST and name == PREVIOUS
            words = "the one before it is sound" if is_last else f"{other.name} is sound"
            return f"{words}: {option}{other}"
    return "there is no sound one beside it: give the path of another .ckpt, or start anew"


# --- the run's folder -----------------------------------------------------------------------------


def move_aside(run_dir: Path) -> Path | None:
    """Rename an earlier run to the first free ``<run_dir>.1``, ``.2``, …; None if there is none.

    Raises:
        ConfigError: when it is in the working directory, which must stay where it is.
    """
    if not any((run_dir / name).exists() for name in (CONFIG, RESULTS, CHECKPOINTS)):
        return None
    if Path.cwd().is_relative_to(run_dir.resolve()):
        raise ConfigError(
            f"run_dir is {run_dir}, where the command was started, so that the earlier run in it "
            "cannot be moved aside\n  give another --run_dir, or resume it with --ckpt_path last"
        )
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    run_dir.rename(aside)
    return aside


class ClaimedFolder:
    """The folder that a training run has for itself, from its checks to its end.

    An earlier run there is moved aside for a new one, and restored if that is refused.
    """

    def __init__(self) -> None:
        self._lock: FolderLock | None = None
        self._moved: tuple[Path, Path] | None = None
        self._name = ""
        self._made: Path | None = None

    def claim(self, run_dir: Path, *, resumes: bool) -> None:
        """Lock the folder; make room for a new run, and print where the earlier one is.

        Args:
            resumes: Whether the run there goes on.

        Raises:
            ConfigError: when another process is training there, or the folder cannot be written;
                nothing is changed then.
        """
        is_new = not run_dir.exists()
        try:
            self._take(run_dir, resumes=resumes)
        except OSError as error:
            raise ConfigError(
                f"run_dir is {run_dir}, which cannot be written ({error.strerror}): give another "
                "folder"
            ) from error
        if is_new:  # only now: a folder that another process made meanwhile is not removed
            self._made = run_dir

    def _take(self, run_dir: Path, *, resumes: bool) -> None:
        self._lock = FolderLock(run_dir)
        if resumes:
            return
        # A path may lead through a link to the folder itself, and lead nowhere once it is moved.
        place = run_dir.parent.resolve()
        aside = move_aside(run_dir)
        if aside is not None:
            print(f"{run_dir} held an earlier run: it is now {aside}")
            of_earlier, self._lock = self._lock, None
            of_earlier.release()
            self._moved, self._name = (place / run_dir.name, place / aside.name), str(run_dir)
            try:
                self._lock = FolderLock(run_dir)
            except ConfigError:  # another process was quicker, and has the folder
                self._moved = None
                raise

    def restore(self) -> None:
        """Leave things as they were, unless the new run has saved checkpoints or results."""
        self._restore()  # while the folder is still this process's
        self.release()

    def _restore(self) -> None:
        if self._moved is None:
            if self._made is not None and {path.name for path in self._made.glob("*")} <= {LOCK}:
                shutil.rmtree(self._made, ignore_errors=True)
            return
        run_dir, aside = self._moved
        if any((run_dir / name).exists() for name in (CHECKPOINTS, RESULTS)):
            return
        shutil.rmtree(run_dir, ignore_errors=True)
        aside.rename(run_dir)
        print(f"the earlier run is {self._name} again")

    def release(self) -> None:
        """Let other processes have the folder, at the run's end."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def check_length(max_epochs: int | None, checkpoint: Path) -> None:
    """Refuse to go on with a run that has more iterations than it shall have in all.

    Raises:
        ConfigError: naming the iterations that the checkpoint has.
    """
    done = iterations_of(checkpoint)
    if max_epochs is not None and 0 <= max_epochs < done:
        raise ConfigError(
            f"trainer.max_epochs is {max_epochs}, but {checkpoint} has {done} iterations already\n"
            f"  set it to {done} to score that policy, to more to go on, or start anew without "
            "--ckpt_path"
        )


# --- what may change ------------------------------------------------------------------------------


def check_continuation(
    old: RunMetadata, new: RunMetadata, path: Path, *, resumes_training: bool
) -> list[str]:
    """Compare a checkpoint with the run that loads it.

    Args:
        resumes_training: Whether training continues; an evaluation only needs the same weights.

    Returns:
        One line per difference that is allowed.

    Raises:
        ConfigError: when the run would no longer be the same experiment.
    """
    before_all, after_all = {"seed": old.seed, **old.config}, {"seed": new.seed, **new.config}
    old_leaves, new_leaves = dict(leaves(before_all)), dict(leaves(after_all))
    changed = {
        key: (old_leaves.get(key), new_leaves.get(key))
        for key in {**old_leaves, **new_leaves}
        if old_leaves.get(key) != new_leaves.get(key)
    }
    # A key that only one of them has was added or removed by a version of this program.
    in_both = old_leaves.keys() & new_leaves.keys() - _LOADED
    for key in _NULLABLE_IN_TRAINING if resumes_training else _NULLABLE:
        was_set, is_set = (_is_set(config, key) for config in (before_all, after_all))
        if was_set != is_set:
            words = {True: "set", False: "null"}
            raise ConfigError(
                f"{key} is {words[is_set]}, but {path} was made with it {words[was_set]}\n"
                f"  keep {key} {words[was_set]}, or start anew without --ckpt_path"
            )
    for key, (before, after) in changed.items():
        fixed_keys = _FIXED if resumes_training else _WEIGHTS
        is_fixed = any(key == fixed or key.startswith(f"{fixed}.") for fixed in fixed_keys)
        if is_fixed and key in in_both:
            name = "seed_everything" if key == "seed" else key
            raise ConfigError(
                f"{name} is {after!r}, but {path} was made with {before!r}\n"
                f"  set {name} to {before!r}, or start anew without --ckpt_path"
            )
    lines = [f"{key}: {before!r} → {after!r}" for key, (before, after) in sorted(changed.items())]
    lines += _changed_files(old, new, path, resumes_training=resumes_training)
    for key in sorted(old.env_code.keys() & new.env_code.keys()):
        if old.env_code[key] != new.env_code[key]:
            lines.append(f"the code of {key}: from here on it may be another task")
    for name in sorted(old.versions.keys() & new.versions.keys()):
        if old.versions[name] != new.versions[name]:
            lines.append(f"{name} {old.versions[name]} → {new.versions[name]}")
    return lines


def _changed_files(
    old: RunMetadata, new: RunMetadata, path: Path, *, resumes_training: bool
) -> list[str]:
    """Compare the files of data, which keep their names when they are edited.

    Returns:
        One line per file that may have changed.

    Raises:
        ConfigError: when the scores of a resumed run would be of two evaluation sets.
    """
    lines = []
    before_all, after_all = dict(leaves(old.config)), dict(leaves(new.config))
    for key in sorted(old.data_files.keys() & new.data_files.keys()):
        before, after = old.data_files[key], new.data_files[key]
        if before == after or before_all.get(key) != after_all.get(key):
            continue
        told = f"{key}: {after_all.get(key)} has other content ({before} → {after}, lines and hash)"
        if resumes_training and key.startswith(_EVAL_SETS):
            raise ConfigError(
                f"{told} since {path}\n"
                "  scores before and after would be of two evaluation sets in one table: put the "
                "file back (a copy may be a further set), or start anew without --ckpt_path"
            )
        lines.append(told)
    return lines


def _is_set(config: Mapping[str, Any], key: str) -> bool:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node is not None
