"""Safe reading of checkpoints that are folders of shards: nothing in them is executed.

PyTorch unpickles a folder's ``.metadata``, and its values other than tensors, without restrictions
(2.13): either could execute code.
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
"""File in a folder of shards with everything but weights and optimizer states."""
_METADATA = (
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorStorageMetadata,
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.TensorProperties,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    filesystem._StoragePrefix,
)
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(kind.__module__, kind.__name__): kind for kind in _METADATA},
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    # The path that the folder was written to, on any system; it is never opened.
    **{(module, "PosixPath"): PurePosixPath for module in ("pathlib", "pathlib._local")},
    **{(module, "WindowsPath"): PureWindowsPath for module in ("pathlib", "pathlib._local")},
    **{("torch", name): kind for name, kind in vars(torch).items() if type(kind) is torch.dtype},
}
"""Classes and functions that a folder's metadata may hold, besides numbers, text and containers."""


class _MetadataUnpickler(pickle.Unpickler):
    """An unpickler that accepts the metadata of tensors and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


class ShardReader(filesystem.FileSystemReader):
    """A reader of folders of shards that refuses metadata of anything but tensors.

    Raises:
        ConfigError: when reading metadata that is missing, damaged or refused.
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
    """A load planner that reads values other than tensors as plain data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        safe = io.BytesIO()  # the parent class unpickles anything: pass it plain data only
        torch.save(torch.load(value, map_location="cpu", weights_only=True), safe)
        safe.seek(0)
        super().load_bytes(read_item, safe)


class _WholePlanner(_PlainPlanner, _EmptyStateDictLoadPlanner):
    """A load planner that reads everything in a folder."""


def check_shards(folder: Path) -> None:
    """Check that every shard is there in full.

    Raises:
        ConfigError: when the folder's metadata cannot be read, or a shard is missing or too short.
    """
    for stored in ShardReader(folder).read_metadata().storage_data.values():
        file = folder / stored.relative_path
        size = file.stat().st_size if file.is_file() else 0
        if size < stored.offset + stored.length:
            raise _refused(folder, f"{file.name} has {size} bytes, and is not complete")


def load_shards(folder: Path, state: dict[str, Any]) -> None:
    """Load the entries of ``state`` from a folder, in place; every rank must call it.

    Raises:
        ConfigError: when the folder cannot be read, or holds values that are not plain data.
    """
    with _short_errors(folder):
        load(state, storage_reader=ShardReader(folder), planner=_PlainPlanner())


def load_whole(folder: Path) -> dict[str, Any]:
    """Return everything in a folder, loaded in this process.

    Raises:
        ConfigError: when the folder cannot be read, or holds values that are not plain data.
    """
    reader, state = ShardReader(folder), dict[str, Any]()
    planner = _WholePlanner()  # type: ignore[no-untyped-call]
    reader.read_metadata()  # first: on errors PyTorch would log a traceback and raise another one
    with _short_errors(folder):
        _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    return state


@contextmanager
def _short_errors(folder: Path) -> Iterator[None]:
    """Turn PyTorch's CheckpointException, which is not an ``Exception``, into a ConfigError."""
    try:
        yield
    except CheckpointException as errors:
        error, _ = next(iter(errors.failures.values()))
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise _refused(folder, reason) from errors


def _refused(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"--ckpt_path {folder}: this is no checkpoint of ragen-pl, or it is damaged or was "
        f"tampered with: {reason}; nothing in it was executed"
    )
