"""Checkpoints as files: saved such that a full disk is no end, loaded from any number of ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from ragen_pl.distributed.collectives import all_or_none
from ragen_pl.distributed.shard_folder import META, load_whole

WRITE_ERRORS = (OSError, RuntimeError, SafetensorError, CheckpointException)
"""What PyTorch, safetensors and Python raise when a disk is full or fails."""


def describe_write_error(error: BaseException) -> str:
    """Describe an error of writing in one line."""
    if isinstance(error, CheckpointException):
        error, _ = next(iter(error.failures.values()))
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def make_parent_on_all(path: Path) -> None:
    """Make the folder of a checkpoint that all ranks write to; every rank must call it.

    Raises:
        OSError: if this rank cannot write there.
        RuntimeError: if another one cannot.
    """

    def make() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(f"{path.parent} cannot be written to")

    all_or_none(make)


class WriteFailure:
    """The first error of this rank's writes within ``collect``."""

    def __init__(self) -> None:
        self.text = ""
        """What failed; empty if nothing did."""
        self._collects = False

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep errors of writing within the block instead of raising them.

        Writing is left to some ranks, and the others wait for them: one that raised would leave
        them waiting.
        """
        self.text, self._collects = "", True
        try:
            yield
        finally:
            self._collects = False

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep an error of the writes within the block, or raise it outside of ``collect``."""
        try:
            yield
        except WRITE_ERRORS as error:
            if not self._collects:
                raise
            self.text = self.text or describe_write_error(error)


WRITE_FAILURE = WriteFailure()
"""That of this process. Lightning saves through several objects, none of which is ours always."""


class AnyCheckpointIO(TorchCheckpointIO):
    """Checkpoint IO that loads single files and folders of shards, on any number of ranks.

    Lightning loads such folders only under the strategy that writes them, and its own command for
    consolidating them fails on them (2.6.6).
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a file. Lightning would first build it in memory, then write it to ``/tmp``."""
        file = Path(path)
        with WRITE_FAILURE.guard():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint as a run without sharding would have written it."""
        folder, safe = Path(path), weights_only is not False
        if not folder.is_dir():
            return super().load_checkpoint(path, map_location, safe)
        tensors = load_whole(folder)
        checkpoint: dict[str, Any] = torch.load(
            folder / META, map_location="cpu", weights_only=safe
        )
        checkpoint["state_dict"] = tensors.pop("state_dict")
        # Keyed by the weights' names; a single file has numbers, but loading goes by order.
        checkpoint["optimizer_states"] = [tensors[name] for name in sorted(tensors)]
        return checkpoint
