"""The run folder: names of its files, earlier runs, and checks before a run is resumed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from ragen_pl.distributed.shard_folder import META
from ragen_pl.errors import ConfigError

CHECKPOINTS, POLICY, TRAJECTORIES = "checkpoints", "policy", "trajectories"
CONFIG, RESULTS = "config.yaml", "results.json"
LAST, BEST = "last", "best"
FINAL = "final"
"""Name of the policy at the end of a run, in ``RESULTS``."""
METADATA = "metadata"
"""Key of the metadata in a checkpoint."""
_WEIGHT_KEYS = (
    "model.policy",
    "model.lora",
    "model.algorithm.advantage.class_path",
    "model.algorithm.advantage.init_args.critic.backbone",
)
"""Keys that decide which weights exist: the policy's and the critic's."""
_NULLABLE_WEIGHT_KEYS = ("model.algorithm.kl", "model.lora")
"""Keys that decide which weights exist by being null or not: the reference's and the adapters'."""
_RUN_KEYS = (*_WEIGHT_KEYS, "seed", "data.env", "data.prompts", "data.warm_start")
"""Keys that must not change when a run is resumed; all others may."""


@dataclass(frozen=True)
class RunMetadata:
    """Configuration, seed, threads and vocabulary behind a checkpoint, as plain data."""

    config: dict[str, Any]
    """The parts of the configuration that the weights depend on: ``model`` and ``data``."""
    seed: int
    threads: int
    """Number of threads; another number changes the order of floating-point sums, and so the last
    bits."""
    vocabulary: list[str]
    """Texts from which the embedded model's tokenizer was built."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a checkpoint's metadata without loading its tensors.

        Raises:
            ConfigError: when the file is no checkpoint of a run, or one of an earlier version.
        """
        file = path / META if path.is_dir() else path
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            if not isinstance(content, dict):  # a tensor alone, say
                raise TypeError(type(content).__name__)
            return cls(**content[METADATA])
        except (
            *(OSError, EOFError, RuntimeError, KeyError, TypeError),
            pickle.UnpicklingError,
        ) as error:
            raise ConfigError(
                f"--ckpt_path {path}: this is no readable checkpoint of ragen-pl, or one of an "
                f"earlier version ({type(error).__name__}); give last, best or the path of a .ckpt "
                "file"
            ) from error


def checkpoint_path(run_dir: Path, wanted: str) -> Path:
    """Resolve ``last``, ``best`` or a path.

    Raises:
        ConfigError: when there is no such checkpoint.
    """
    if wanted in (LAST, BEST):
        path = run_dir / CHECKPOINTS / f"{wanted}.ckpt"
        # Folders are swapped in two steps: a run that was killed in between left the old one.
        for candidate in (path, path.with_suffix(".old")):
            if candidate.exists():
                return candidate
        found = sorted(str(p) for p in run_dir.glob(f"{CHECKPOINTS}/*.ckpt"))
        hint = f"there is {', '.join(found)}" if found else "check --run_dir, or start without it"
        raise ConfigError(f"--ckpt_path {wanted}: there is no {path}\n  {hint}")
    if not Path(wanted).exists():
        raise ConfigError(
            f"--ckpt_path {wanted}: there is no such file; give last, best or the path of a .ckpt"
        )
    return Path(wanted)


def belongs_to_run(checkpoint: Path, run_dir: Path) -> bool:
    """Whether a checkpoint is in a run's folder; the folder may contain links to other disks."""
    folders = (run_dir.resolve(), (run_dir / CHECKPOINTS).resolve(), _absolute(run_dir))
    return any(
        path.is_relative_to(folder)
        for path in (checkpoint.resolve(), _absolute(checkpoint))
        for folder in folders
    )


def _absolute(path: Path) -> Path:
    """Return the absolute path without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100  resolve would follow them


def read_results(run_dir: Path) -> dict[str, Any] | None:
    """Return the content of a run's ``results.json``; None where it is missing or unreadable."""
    try:
        content = json.loads((run_dir / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def finished_iterations(run_dir: Path) -> int | None:
    """Return the number of iterations of a run that has finished and evaluated its final policy,
    else None."""
    results = read_results(run_dir)
    if results is None or results.get("status") != "finished":
        return None
    policies = [entry.get("policy") for entry in results.get("evaluations", ())]
    return results.get("iterations") if FINAL in policies else None


def move_aside(run_dir: Path) -> Path | None:
    """Rename an earlier run to the first free ``<run_dir>.1``, ``.2``, …; return the new path, or
    None where there was no run."""
    if not any((run_dir / name).exists() for name in (CONFIG, RESULTS, CHECKPOINTS)):
        return None
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    run_dir.rename(aside)
    return aside


class EarlierRun:
    """An earlier run in the run folder: moved aside, and restored if the new run is refused."""

    def __init__(self) -> None:
        self._moved: tuple[Path, Path] | None = None

    def move_aside(self, run_dir: Path) -> None:
        """Move the earlier run aside, and print where."""
        aside = move_aside(run_dir)
        if aside is not None:
            self._moved = run_dir, aside
            print(f"moved the earlier run in {run_dir} to {aside}")

    def restore(self) -> None:
        """Undo ``move_aside``, unless the new run has written checkpoints or results."""
        if self._moved is None:
            return
        run_dir, aside = self._moved
        if any((run_dir / name).exists() for name in (CHECKPOINTS, RESULTS)):
            return
        shutil.rmtree(run_dir, ignore_errors=True)
        aside.rename(run_dir)
        print(f"restored the earlier run to {run_dir}")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return (old, new) by dotted key for every leaf that differs."""
    before, after = dict(leaves(old)), dict(leaves(new))
    return {
        key: (before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    }


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over (dotted key, value) of nested mappings."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        # YAML has lists where constructors have tuples.
        yield path, list(tree) if isinstance(tree, tuple) else tree


def check_resume(old: RunMetadata, new: RunMetadata, path: Path, *, is_training: bool) -> list[str]:
    """Compare a checkpoint's metadata with those of the run that loads it.

    Args:
        old: The checkpoint's.
        new: The run's.
        path: The checkpoint, for messages.
        is_training: Whether training is resumed; an evaluation only needs the same weights.

    Returns:
        One line per difference that is allowed.

    Raises:
        ConfigError: when the run would be a different experiment.
    """
    old_config, new_config = {"seed": old.seed, **old.config}, {"seed": new.seed, **new.config}
    changed = differences(old_config, new_config)
    for key in _NULLABLE_WEIGHT_KEYS:
        before, after = (_is_set(config, key) for config in (old_config, new_config))
        if before != after:
            words = {True: "set", False: "null"}
            raise ConfigError(
                f"{key} is {words[after]}, but it was {words[before]} in {path}\n"
                f"  keep {key} {words[before]}, or start a new run without --ckpt_path"
            )
    for key, (before, after) in changed.items():
        fixed_keys = _RUN_KEYS if is_training else _WEIGHT_KEYS
        is_fixed = any(key == fixed or key.startswith(f"{fixed}.") for fixed in fixed_keys)
        # A key that only one of them has was added or removed by a version of this program.
        if is_fixed and None not in (before, after):
            name = "seed_everything" if key == "seed" else key
            raise ConfigError(
                f"{name} is {after!r}, but it was {before!r} in {path}\n"
                f"  set {name} to {before!r}, or start a new run without --ckpt_path"
            )
    return [f"{key}: {before!r} → {after!r}" for key, (before, after) in sorted(changed.items())]


def _is_set(config: Mapping[str, Any], key: str) -> bool:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node is not None
