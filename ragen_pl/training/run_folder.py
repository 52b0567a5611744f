"""The folder of a run: its file names, its results, the metadata of its checkpoints."""

from __future__ import annotations

import json
import os
import pickle
import re
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import torch

from ragen_pl.distributed.shard_folder import META, check_shards
from ragen_pl.errors import ConfigError

CHECKPOINTS, POLICY, TRAJECTORIES = "checkpoints", "policy", "trajectories"
EVALUATIONS = "evaluations"
"""Folder of the results of ``validate`` and ``test``."""
CONFIG, RESULTS = "config.yaml", "results.json"
LAST, BEST, PREVIOUS = "last", "best", "previous"
Export = Literal["always", "end"]
"""When policies are exported: with every checkpoint, or at the end of the run alone."""
FINAL = "final"
"""Name, in ``RESULTS``, of the policy that a run ended with."""
UNTRAINED = "untrained"
METADATA = "metadata"
"""Key of the metadata in a checkpoint."""
_FORMER_METADATA = "run"
"""Key of the metadata in checkpoints of earlier versions, which can no longer be resumed."""


@dataclass(frozen=True)
class RunMetadata:
    """Settings that a checkpoint was made with, as plain data."""

    config: dict[str, Any]
    """The parts of the configuration that decide what the weights mean: ``model`` and ``data``."""
    seed: int
    threads: int
    """Number of threads. Another number changes the order of floating-point sums, and so the last
    bits of results."""
    vocabulary: list[str]
    """Pieces of text that the embedded model's tokenizer was made from."""
    env_code: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the environments' code by key; none in older checkpoints."""
    data_files: dict[str, str] = field(default_factory=dict)
    """Number of lines and hash of the files that keys of environments name, by key; none in older
    checkpoints."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that decide results, by name; none in older checkpoints."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a checkpoint's metadata without loading its tensors.

        Raises:
            ConfigError: when the file is not a checkpoint of a run.
        """
        file = path / META if path.is_dir() else path
        try:
            _check_whole(file)
            if path.is_dir():
                check_shards(path)
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            if not isinstance(content, dict):  # a tensor alone, for instance
                raise TypeError(type(content).__name__)
            if _FORMER_METADATA in content and METADATA not in content:
                raise ConfigError(
                    f"--ckpt_path {path} was written by an earlier version of ragen-pl, whose "
                    "keys had other names (CHANGELOG.md lists them)\n"
                    "  resume it with that version, or start again without --ckpt_path; its "
                    "exported policy (policy/) can be trained on with PretrainedModel"
                )
            return cls(**content[METADATA])
        except ConfigError:
            raise
        except (
            *(OSError, EOFError, RuntimeError, KeyError, TypeError, ValueError, AttributeError),
            *(pickle.UnpicklingError, zipfile.BadZipFile),
        ) as error:
            raise ConfigError(
                f"--ckpt_path {path}: this is no readable checkpoint of ragen-pl, or it is "
                f"damaged ({type(error).__name__}: {error!s:.60})"
            ) from error


def iterations_of(checkpoint: Path) -> int:
    """Return how many iterations a sound checkpoint, whose metadata were read, was trained for."""
    file = checkpoint / META if checkpoint.is_dir() else checkpoint
    content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return int(content["epoch"]) + 1  # all are saved at an iteration's end


def _check_whole(file: Path) -> None:
    """Read a whole file and compare the checksums in it.

    PyTorch itself reads damaged numbers without an error.

    Raises:
        zipfile.BadZipFile: when it is damaged, or no file of ``torch.save``.
    """
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{damaged} is damaged")


def file_name_of(policy: str, run_dir: Path) -> str:
    """Return the stem of a checkpoint of the run, or a policy's name or path with characters that
    file names may have."""
    path = Path(policy)
    name = path.stem if path.suffix == ".ckpt" and is_of(run_dir, path) else policy
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or UNTRAINED


def is_of(run_dir: Path, checkpoint: Path) -> bool:
    """Return whether a checkpoint belongs to the run in a folder, which may hold links to other
    disks."""
    folders = (run_dir.resolve(), (run_dir / CHECKPOINTS).resolve(), _absolute(run_dir))
    return any(
        path.is_relative_to(folder)
        for path in (checkpoint.resolve(), _absolute(checkpoint))
        for folder in folders
    )


def _absolute(path: Path) -> Path:
    """Make a path absolute without following links."""
    return Path(os.path.abspath(path))  # noqa: PTH100  resolve would follow them


def read_results(run_dir: Path) -> dict[str, Any] | None:
    """Read a run's results; None if they are missing or unreadable."""
    try:
        content = json.loads((run_dir / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def finished_iterations(run_dir: Path) -> int | None:
    """Return the number of iterations of a run that reached its end and scored its final policy;
    None for any other run."""
    results = read_results(run_dir)
    if results is None or results.get("status") != "finished":
        return None
    entries = results.get("evaluations") or ()
    policies = [entry.get("policy") for entry in entries if isinstance(entry, dict)]
    return results.get("iterations") if FINAL in policies else None
