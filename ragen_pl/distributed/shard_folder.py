"""Read checkpoints that are folders of shards without running anything that they hold.

PyTorch unpickles a folder's ``.metadata``, and whatever in it is no tensor, without a look at what
they ask for (2.13): either could name a command to run.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    _EmptyStateDictLoadPlanner,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict, load
from torch.serialization import _get_layout

from ragen_pl.errors import ConfigError

META = "meta.pt"
"""In a checkpoint that is a folder of shards, what is neither weight nor optimizer state."""
_METADATA = (
    *(metadata.Metadata, metadata.MetadataIndex, metadata.StorageMeta),
    *(metadata.TensorStorageMetadata, metadata.BytesStorageMetadata),
    *(metadata.ChunkStorageMetadata, metadata.TensorProperties, metadata._MEM_FORMAT_ENCODING),
    *(filesystem._StorageInfo, filesystem._StoragePrefix),
)
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(kind.__module__, kind.__name__): kind for kind in _METADATA},
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    # Where the folder was written: of any system, and never opened.
    **{(module, "PosixPath"): PurePosixPath for module in ("pathlib", "pathlib._local")},
    **{(module, "WindowsPath"): PureWindowsPath for module in ("pathlib", "pathlib._local")},
    **{("torch", name): kind for name, kind in vars(torch).items() if type(kind) is torch.dtype},
}
"""All that a folder's description is made of, beside numbers, text and their containers."""


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickle a description of tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


class ShardReader(filesystem.FileSystemReader):
    """Read a folder of shards whose description names nothing but tensors.

    Raises:
        ConfigError: when it is read, if there is none or if it names something else.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        path = Path(self._get_metadata_path(kwargs.get("rank")))
        try:
            with path.open("rb") as file:
                found = _unpickle(file)
        except (OSError, EOFError, AttributeError, TypeError, pickle.UnpicklingError) as error:
            raise _refused(path.parent, f"{path.name} cannot be read ({error})") from error
        if found.storage_meta is None:
            found.storage_meta = metadata.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


def _unpickle(file: IO[bytes]) -> metadata.Metadata:
    found = _MetadataUnpickler(file).load()
    if not isinstance(found, metadata.Metadata):
        raise TypeError(f"it holds a {type(found).__name__}")
    return found


class _PlainPlanner(DefaultLoadPlanner):
    """Load what is no tensor as plain data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        again = io.BytesIO()  # of what was found harmless: the loader above unpickles anything
        torch.save(torch.load(value, map_location="cpu", weights_only=True), again)
        again.seek(0)
        super().load_bytes(read_item, again)


class _WholePlanner(_PlainPlanner, _EmptyStateDictLoadPlanner):
    """Load all that there is."""


def load_shards(folder: Path, state: dict[str, Any]) -> None:
    """Load a part of a folder in place; every rank must call it.

    Raises:
        ConfigError: when it cannot be read, or holds what is no plain data.
    """
    with _short_errors(folder):
        load(state, storage_reader=ShardReader(folder), planner=_PlainPlanner())


def load_whole(folder: Path) -> dict[str, Any]:
    """Load all of a folder in this process.

    Raises:
        ConfigError: when it cannot be read, or holds what is no plain data.
    """
    reader, state = ShardReader(folder), dict[str, Any]()
    planner = _WholePlanner()  # type: ignore[no-untyped-call]
    reader.read_metadata()  # PyTorch would log this error's traceback, and raise another one
    with _short_errors(folder):
        _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    return state


@contextmanager
def _short_errors(folder: Path) -> Iterator[None]:
    """Word what PyTorch collects of all ranks, which is no ``Exception``."""
    try:
        yield
    except CheckpointException as errors:
        error, _ = next(iter(errors.failures.values()))
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise _refused(folder, reason) from errors


def _refused(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"--ckpt_path {folder}: this is no checkpoint of ragen-pl, or it is damaged or was "
        f"tampered with: {reason}; nothing in it was run"
    )
