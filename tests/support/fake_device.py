"""Compute on a device that is not the CPU, without having one.

Importing this makes a device ``elsewhere`` for the rest of the process. Its tensors are the CPU's
behind a wrapper, and what a GPU would refuse is refused: an operation on tensors of two devices,
numpy's view of them, float64 (as Apple's do). What a GPU would be waited for is counted. So code
that was only ever run on a CPU can be run as it will be run on a GPU, but for its kernels and for
how long they take.

Its products are never taken in bfloat16: autocast does not know it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from lightning.pytorch.accelerators import Accelerator
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "elsewhere"
aten = torch.ops.aten

_COPIES = {aten.copy_.default, aten._to_copy.default}
_INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_SIZED_BY_NUMBERS = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.equal.default,
    aten.repeat_interleave.Tensor,
}
"""Operations whose outcome's size, or answer, the CPU needs to go on."""

waits: Counter[str] = Counter()
"""Where the CPU waited for the device, and how often: the operation, and the function of the
project that asked for it."""


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)


class ElsewhereTensor(Tensor):
    """Wrap a tensor of the CPU."""

    behind: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> ElsewhereTensor:
        made: ElsewhereTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.behind = inner
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"elsewhere: {self.behind!r}"

    # Of these transformers asks which weights are tied, and a cache whether its buffers moved.
    def storage(self) -> Any:
        return self.behind.storage()  # type: ignore[no-untyped-call]

    def untyped_storage(self) -> Any:
        return self.behind.untyped_storage()

    def data_ptr(self) -> int:
        return self.behind.data_ptr()

    def numpy(self, **_: Any) -> NoReturn:  # type: ignore[override]
        raise TypeError("a tensor elsewhere has no view in numpy: copy it to the CPU first")

    __array__ = numpy  # type: ignore[assignment]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As one loads it: onto the CPU.
        return self.behind.clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(op, *args, **(kwargs or {}))


def _compute(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Do on the CPU what is asked for elsewhere."""
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    elsewhere = [x for x in given if isinstance(x, ElsewhereTensor)]
    _check_devices(op, args, given)
    device = kwargs.get("device")
    if device is not None:
        kwargs["device"] = torch.device("cpu")
    inner = tree_map(lambda x: x.behind if isinstance(x, ElsewhereTensor) else x, (args, kwargs))
    found = op(*inner[0], **inner[1])
    if op is aten.copy_.default:
        is_elsewhere = isinstance(args[0], ElsewhereTensor)
    elif device is not None:
        is_elsewhere = torch.device(device).type == NAME
    else:
        is_elsewhere = bool(elsewhere) and op is not aten._local_scalar_dense.default
    if _waits(op, args, kwargs, is_elsewhere, bool(elsewhere)):
        waits[f"{op.overloadpacket.__name__} in {_caller()}"] += 1
    if is_elsewhere:
        _check_types(op, found)
    known = {id(x.behind): x for x in elsewhere}  # what was written into is what comes back

    def outer(x: Any) -> Any:
        if not isinstance(x, Tensor) or not is_elsewhere:
            return x
        return known[id(x)] if id(x) in known else ElsewhereTensor(x)

    return tree_map(outer, found)


def _check_devices(op: OpOverload, args: Any, given: list[Tensor]) -> None:
    """Refuse tensors of two devices as CUDA does: numbers may come from the CPU, and so may the
    places at which a tensor is read or written."""
    here = [x for x in given if not isinstance(x, ElsewhereTensor) and x.dim()]
    if not here or len(here) == len(given) or op in _COPIES:
        return
    values = args[2:3] if op in _INDEXED and op is not aten.index.Tensor else ()
    looked_at = [args[0], *values] if op in _INDEXED else here
    if any(not isinstance(x, ElsewhereTensor) and x.dim() for x in looked_at):
        shapes = [(x.device.type, tuple(x.shape)) for x in given]
        raise RuntimeError(f"{op} was given tensors of two devices: {shapes}")


def _check_types(op: OpOverload, found: Any) -> None:
    if any(isinstance(x, Tensor) and x.dtype is torch.float64 for x in tree_leaves(found)):
        raise TypeError(f"{op} would make float64, which Apple's GPUs do not have")


def _waits(op: OpOverload, args: Any, kwargs: Any, to: bool, of: bool) -> bool:
    """Say whether the CPU would wait, by whether the outcome is elsewhere and what is given is.

    A copy to a device waits for all that was asked of it before, unless it is said not to block.
    """
    if op in _COPIES:
        source = args[1] if op is aten.copy_.default else args[0]
        blocks = not kwargs.get("non_blocking", len(args) > 2 and args[2])
        return to != isinstance(source, ElsewhereTensor) and (blocks or not to)
    if op in _INDEXED:
        return of and any(x is not None and x.dtype == torch.bool for x in args[1])
    return of and (not to or op in _SIZED_BY_NUMBERS)


def _caller() -> str:
    """Name the innermost function that is neither PyTorch's, nor this file's, nor what copies."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_globals.get("__name__", "")
        is_copy = frame.f_code.co_name == "to_device"
        if module.split(".")[0] != "torch" and module != __name__ and not is_copy:
            return f"{module}.{frame.f_code.co_qualname}"
    return "nobody"


_library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
# What makes tensors, and is given none.
_library.fallback(_compute, "PrivateUse1")  # type: ignore[no-untyped-call]

_device_constructors()  # a default device is for these: remembered before one is replaced
_tensor = torch.tensor


def _made_here(data: Any, *, device: Any = None, **more: Any) -> Tensor:
    made = _tensor(data, **more)
    return made if device is None else made.to(device)


# PyTorch's own does not come to the library.
torch.tensor = _made_here  # type: ignore[assignment]
# A module that moves keeps its parameters, and so which of them are one and the same.
torch.__future__.set_swap_module_params_on_conversion(True)


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Count from now on."""
    found: Counter[str] = Counter()
    before = waits.copy()
    yield found
    found.update(waits - before)


class Elsewhere(Accelerator):
    """Let Lightning train there."""

    def setup_device(self, device: torch.device) -> None:
        assert device == DEVICE

    def teardown(self) -> None:
        """Leave nothing behind."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return 1

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [DEVICE] * devices

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME
