"""The bytes that are alive while operations run, counted on tensors without data.

PyTorch's fake tensors have shapes and dtypes but no memory. The real networks, run on them, make
the same allocations, so a peak is counted and not estimated from formulas, for any architecture,
attention function, precision and gradient checkpointing.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the bytes that operations within this context allocate and that are still alive.

    Storages that existed before the context are not counted. ``live`` is the number of bytes alive
    now, ``peaks`` the largest number at once in each stage so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peaks = [0]
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for value in tree_iter((args, dict(kwargs or {}))):
            if isinstance(value, torch.Tensor):  # allocated earlier, or outside of this mode
                self._known.add(value.untyped_storage())
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.live += size
        self.peaks[-1] = max(self.peaks[-1], self.live)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.live -= size

    def next_stage(self) -> None:
        """Begin a stage with a peak of its own."""
        self.peaks.append(self.live)
