"""Keep each run in a folder of its own: names, making room, and what a checkpoint was made with."""

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
"""In ``RESULTS``, the policy that a run ended with."""
FACTS = "run"
"""Key of the facts in a checkpoint."""
_WEIGHTS = (
    "model.policy",
    "model.lora",
    "model.algorithm.advantage.class_path",
    "model.algorithm.advantage.init_args.critic.backbone",
)
"""What decides which weights there are: those of the policy and of a critic."""
_PRESENT = ("model.algorithm.kl", "model.lora")
"""The same, where it matters whether the key is null: the weights of a reference, and adapters."""
_FIXED = (*_WEIGHTS, "seed", "data.env", "data.prompts", "data.warm_start")
"""What a run that goes on must share with the one before: all else may change."""


@dataclass(frozen=True)
class RunMetadata:
    """Record what a checkpoint was made with, as plain data."""

    config: dict[str, Any]
    """The parts of the configuration that decide what the weights mean: ``model`` and ``data``."""
    seed: int
    threads: int
    """More or fewer change the order of floating-point sums, and so the last bits."""
    vocabulary: list[str]
    """Pieces of text the embedded model's tokenizer was made from."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a checkpoint's facts without loading its tensors.

        Raises:
            ConfigError: when the file is no checkpoint of a run.
        """
        file = path / META if path.is_dir() else path
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            if not isinstance(content, dict):  # a tensor alone, say
                raise TypeError(type(content).__name__)
            return cls(**content[FACTS])
        except (
            *(OSError, EOFError, RuntimeError, KeyError, TypeError),
            pickle.UnpicklingError,
        ) as error:
            raise ConfigError(
                f"--ckpt_path {path}: this is no readable checkpoint of ragen-pl "
                f"({type(error).__name__}); give last, best or the path of a .ckpt file"
            ) from error


def checkpoint_path(run_dir: Path, wanted: str) -> Path:
    """Resolve ``last``, ``best`` or a path.

    Raises:
        ConfigError: when there is nothing.
    """
    if wanted in (LAST, BEST):
        path = run_dir / CHECKPOINTS / f"{wanted}.ckpt"
        # Folders are exchanged in two steps: a run that was killed between them left the old one.
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


def is_of(run_dir: Path, checkpoint: Path) -> bool:
    """Whether a checkpoint is of the run in a folder, which may hold links to other disks."""
    folders = (run_dir.resolve(), (run_dir / CHECKPOINTS).resolve(), _spelled(run_dir))
    return any(
        path.is_relative_to(folder)
        for path in (checkpoint.resolve(), _spelled(checkpoint))
        for folder in folders
    )


def _spelled(path: Path) -> Path:
    """Make a path absolute, links left as they are."""
    return Path(os.path.abspath(path))  # noqa: PTH100  resolve would follow them


def read_results(run_dir: Path) -> dict[str, Any] | None:
    """Read what a run has written about itself; None where there is nothing that can be read."""
    try:
        content = json.loads((run_dir / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def finished_iterations(run_dir: Path) -> int | None:
    """Return the length of a run that came to its end and scored its final policy, else None."""
    results = read_results(run_dir)
    if results is None or results.get("status") != "finished":
        return None
    policies = [entry.get("policy") for entry in results.get("evaluations", ())]
    return results.get("iterations") if FINAL in policies else None


def move_aside(run_dir: Path) -> Path | None:
    """Rename an earlier run to the first free ``<run_dir>.1``, ``.2``, …; None without one."""
    if not any((run_dir / name).exists() for name in (CONFIG, RESULTS, CHECKPOINTS)):
        return None
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    run_dir.rename(aside)
    return aside


class EarlierRun:
    """Keep the earlier run of a folder, and put it back when the new one is refused."""

    def __init__(self) -> None:
        self._moved: tuple[Path, Path] | None = None

    def move_aside(self, run_dir: Path) -> None:
        """Make place for a new run, and say so."""
        aside = move_aside(run_dir)
        if aside is not None:
            self._moved = run_dir, aside
            print(f"{run_dir} held an earlier run: it is now {aside}")

    def load_full_state(self) -> None:
        """Undo that, unless the new run has something to show."""
        if self._moved is None:
            return
        run_dir, aside = self._moved
        if any((run_dir / name).exists() for name in (CHECKPOINTS, RESULTS)):
            return
        shutil.rmtree(run_dir, ignore_errors=True)
        aside.rename(run_dir)
        print(f"the earlier run is {run_dir} again")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return dotted key → (old, new) for every leaf that differs."""
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
        # Configurations come back from YAML with lists where constructors hold tuples.
        yield path, list(tree) if isinstance(tree, tuple) else tree


def check_continuation(
    old: RunMetadata, new: RunMetadata, path: Path, *, goes_on: bool
) -> list[str]:
    """Compare a checkpoint with the run that wants to use it.

    Args:
        goes_on: Whether training goes on; an evaluation only needs the same weights.

    Returns:
        One line per difference that may be meant.

    Raises:
        ConfigError: when the run would no longer be the same experiment.
    """
    before_all, after_all = {"seed": old.seed, **old.config}, {"seed": new.seed, **new.config}
    changed = differences(before_all, after_all)
    for key in _PRESENT:
        before, after = (_is_set(config, key) for config in (before_all, after_all))
        if before != after:
            words = {True: "set", False: "null"}
            raise ConfigError(
                f"{key} is {words[after]}, but {path} was made with it {words[before]}\n"
                f"  keep {key} {words[before]}, or start anew without --ckpt_path"
            )
    for key, (before, after) in changed.items():
        fixed_keys = _FIXED if goes_on else _WEIGHTS
        is_fixed = any(key == fixed or key.startswith(f"{fixed}.") for fixed in fixed_keys)
        # A key that only one of them has came or went with a version of this program.
        if is_fixed and None not in (before, after):
            name = "seed_everything" if key == "seed" else key
            raise ConfigError(
                f"{name} is {after!r}, but {path} was made with {before!r}\n"
                f"  set {name} to {before!r}, or start anew without --ckpt_path"
            )
    return [f"{key}: {before!r} → {after!r}" for key, (before, after) in sorted(changed.items())]


def _is_set(config: Mapping[str, Any], key: str) -> bool:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node is not None
