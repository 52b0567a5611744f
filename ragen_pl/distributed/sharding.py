"""Networks sharded over the ranks (FSDP2): sharding, unsharding for a rollout, and full states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from ragen_pl.distributed.collectives import broadcast_from_rank0, gather_objects, rank

T = TypeVar("T")
_GIB = 1 << 30

_gather_dtypes: WeakKeyDictionary[nn.Module, torch.dtype] = WeakKeyDictionary()
"""Dtype in which a network's weights are gathered, if it differs from their own."""


def has_hooks(model: nn.Module) -> bool:
    """Return whether any module of a model has forward hooks, or is sharded: FSDP2's hooks are set
    aside while a rank uses whole weights, which lie elsewhere in the next rollout."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or isinstance(part, FSDPModule)
        for part in model.modules()
    )


def transformer_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the blocks, all alike, of the network's largest ``ModuleList``; an empty list if there
    is none."""
    stacks = [part for part in network.modules() if isinstance(part, nn.ModuleList)]
    sizes = [sum(weight.numel() for weight in stack.parameters()) for stack in stacks]
    return list(stacks[sizes.index(max(sizes))]) if stacks else []


def shard(network: nn.Module, mesh: DeviceMesh, gather_dtype: torch.dtype | None = None) -> None:
    """Shard a policy or critic in place: every transformer block, then the other weights as a unit.

    The weights are those of the first rank; other ranks need their shapes only. Tied embeddings
    belong to the same unit, as they must. Every unit, the last one included, is unsharded only
    during a pass: between passes every parameter is a shard, on which the optimizer, checkpoints
    and copies from one network to another rely.

    Args:
        network: Policy or critic. It may be called as ``network(input_ids, mask, padding)``, or by
            a method named in its ``other_forwards``, but not through one of its parts: only a call
            of the network unshards the parts.
        mesh: Device mesh: of one dimension, or of two, copies by shards.
        gather_dtype: Dtype of unsharded weights; None for that of the shards. Call the network
            under autocast to this dtype. With float32 weights autocast would instead keep a copy
            of every whole weight for the backward pass. Shards keep their dtype, and gradients are
            summed in float32.
    """
    weights = {} if rank() else {n: weight.detach() for n, weight in network.named_parameters()}
    policy = MixedPrecisionPolicy()
    if gather_dtype is not None:
        # As without shards, autocast decides which operation computes in which dtype.
        policy = MixedPrecisionPolicy(gather_dtype, torch.float32, cast_forward_inputs=False)
        _gather_dtypes[network] = gather_dtype
        _keep_embedding_dtype(network)
    for block in transformer_blocks(network):
        fully_shard(block, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(network, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    for name in getattr(network, "other_forwards", ()):
        register_fsdp_forward_method(network, name)
    load_full_state(network, weights)
    with torch.no_grad():
        for buffer in network.buffers():  # including those that no checkpoint holds
            buffer.copy_(broadcast_from_rank0(buffer))


def _keep_embedding_dtype(network: nn.Module) -> None:
    """Make embeddings return hidden states in the dtype of their shards.

    Autocast does not apply to them. Layers add to the hidden states that an embedding returns, and
    in bfloat16 every sum would be rounded.
    """

    def keep(dtype: torch.dtype) -> Any:
        return lambda _, __, states: states.to(dtype)

    for part in network.modules():
        if isinstance(part, nn.Embedding):
            part.register_forward_hook(keep(part.weight.dtype))


@contextmanager
def summon_full_params(network: nn.Module | None) -> Iterator[None]:
    """Unshard a network, so that a rank can use any part of it independently of the others.

    Every rank must enter the context; within it and on exit nothing is communicated, and modules
    run without FSDP2's hooks, so that ranks may run them as often as each likes. Gradients are
    then those of this rank with respect to unsharded weights: compute them with
    ``torch.autograd.grad`` for parameters that were looked up within the context. The context does
    nothing for None and for a network that is not sharded.

    Raises:
        RuntimeError: on all ranks, when the unsharded weights do not fit the device of any rank.
    """
    if not isinstance(network, FSDPModule):
        yield
        return
    units = [part for part in network.modules() if isinstance(part, FSDPModule)]
    weight, dtype = next(network.parameters()), _gather_dtypes.get(network)
    full_bytes = sum(p.numel() * (dtype or p.dtype).itemsize for p in network.parameters())
    _check_free_memory(full_bytes, weight.device)
    network.set_reshard_after_forward(False)
    network.set_reshard_after_backward(False)
    try:
        # A pass over no rows gathers all weights. It calls the network as a whole first, since FSDP
        # takes the first module that is called for the root.
        nothing = torch.zeros(0, 2, dtype=torch.long, device=weight.device)
        autocast = torch.autocast(weight.device.type, dtype) if dtype else nullcontext()
        with torch.no_grad(), autocast:
            network(nothing, nothing.bool(), nothing.bool())
        with _without_hooks(units):
            yield
    finally:
        network.set_reshard_after_forward(True)
        network.set_reshard_after_backward(True)
        for unit in units:
            unit.reshard()


@contextmanager
def _without_hooks(units: Sequence[FSDPModule]) -> Iterator[None]:
    """Let units whose weights are whole run as plain modules.

    FSDP2's hooks note every call of a unit, and the next backward pass prefetches in that order: a
    rank that had called other units than the others would gather what they do not, and wait for
    them for ever.
    """
    taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for unit in units:
        assert isinstance(unit, nn.Module)
        state = unit._get_fsdp_state()
        for hooks in (unit._forward_pre_hooks, unit._forward_hooks):
            taken.append((hooks, hooks.copy()))
            for key in [
                key for key, hook in hooks.items() if getattr(hook, "__self__", None) is state
            ]:
                del hooks[key]
    try:
        yield
    finally:
        for hooks, before in taken:
            hooks.clear()
            hooks.update(before)


def _check_free_memory(needed: int, device: torch.device) -> None:
    """Raise a RuntimeError on all ranks when one of them has less free memory."""
    free = [needed]
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = gather_objects(torch.cuda.mem_get_info(device)[0] + reusable)
    if min(free) < needed:
        raise RuntimeError(
            f"trainer.strategy is fsdp, and rollouts need the policy whole on every device: "
            f"{needed / _GIB:.1f} GiB, but a device has {min(free) / _GIB:.1f} GiB free. Decoding "
            "with sharded weights is not supported: set trainer.precision to bf16-mixed, which "
            "gathers weights in half of float32's bytes, or use a smaller model"
        )


def sum_copies_once(network: nn.Module, batches: Iterable[T]) -> Iterator[T]:
    """Yield batches whose gradients add up, with one backward pass after each.

    Where copies of a sharded network are trained (HSDP), their gradients are summed in the backward
    pass of the last batch alone; until then each copy keeps its own sums, sharded. Any other
    network is left as it is. Every rank must yield as many.
    """
    last: list[T] = []
    for batch in batches:
        if last:
            _sum_copies(network, now=False)
            yield last.pop()
        last.append(batch)
    _sum_copies(network, now=True)
    yield from last


def _sum_copies(network: nn.Module, *, now: bool) -> None:
    if isinstance(network, FSDPModule):
        network.set_requires_all_reduce(now)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor as one process would hold it; for a shard every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(whole: Tensor, weight: DTensor) -> Tensor:
    """Return a weight's shard of a tensor that every rank holds whole; nothing is communicated."""
    mesh = weight.device_mesh
    replicas = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicas.redistribute(placements=weight.placements)


def full_state_dict(module: nn.Module, *, trainable_only: bool = False) -> dict[str, Tensor]:
    """Return a module's state as one process would hold it; every rank must call it.

    Args:
        module: Module, sharded or not.
        trainable_only: Whether to leave frozen weights out; they are then not gathered either.

    Returns:
        Tensors by name, tied weights as one tensor. If the module is sharded, the first rank gets
        them in CPU memory and the others get none; otherwise every rank gets its own tensors.
    """
    is_sharded = any(isinstance(weight, DTensor) for weight in module.parameters())
    options = StateDictOptions(
        full_state_dict=is_sharded, cpu_offload=is_sharded, ignore_frozen_params=trainable_only
    )
    state = cast(dict[str, Tensor], get_model_state_dict(module, options=options))
    # PyTorch gathers tied weights one by one, and leaves out one name of a frozen weight only.
    first_names: dict[nn.Parameter, str] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        if trainable_only and not weight.requires_grad:
            state.pop(name, None)
        elif name in state:
            state[name] = state[first_names.setdefault(weight, name)]
    return state


def load_full_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy full tensors into a module's weights and buffers of the same names, in place.

    Every rank must call it; the first rank's tensors are loaded, the other ranks' are not read.
    """
    many = dist.is_initialized()
    options = StateDictOptions(full_state_dict=many, broadcast_from_rank0=many, strict=False)
    # Broadcasts need contiguous tensors.
    tensors: dict[str, Any] = {name: tensor.contiguous() for name, tensor in state.items()}
    set_model_state_dict(module, tensors, options=options)


def load_full_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Load a full optimizer state; moments are sharded like their weights.

    Every rank must call it. Weights are matched by position, as in ``Optimizer.load_state_dict``.
    The first rank's tensors are loaded; the other ranks' need shapes only.
    """
    # Not set_optimizer_state_dict(full_state_dict=True): it matches weights by name, but a file has
    # numbers. It also fills an empty state by taking a step, after which weights without saved
    # moments count a step that they have not taken.
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    keys = [key for group in state["param_groups"] for key in group["params"]]
    weight_of = dict(zip(keys, weights, strict=True))
    moments = {
        key: {name: _distribute_like(value, weight_of[key]) for name, value in entry.items()}
        for key, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def _distribute_like(value: Any, weight: Tensor) -> Any:
    """Shard the first rank's full tensor like a weight of its shape; return others unchanged."""
    if not isinstance(weight, DTensor) or getattr(value, "shape", None) != weight.shape:
        return value
    value = torch.empty_like(value, device=weight.device) if value.is_meta else value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, list(weight.placements))


def materialize(networks: Iterable[nn.Module]) -> None:
    """Move tensors from the meta device to the CPU, in place and uninitialized.

    The system allocates no memory for them until it is written to. Weights that several modules
    share stay shared.
    """
    empty: dict[Tensor, nn.Parameter] = {}
    for part in nn.ModuleList(networks).modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                if weight not in empty:
                    empty[weight] = nn.Parameter(_empty(weight), weight.requires_grad)
                part._parameters[name] = empty[weight]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = _empty(buffer)


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def frozen_base_weights(module: nn.Module, policy: nn.Module) -> dict[str, Tensor]:
    """Return the policy's frozen weights, under every name that ``module`` has for them."""
    frozen = {id(weight) for weight in policy.parameters() if not weight.requires_grad}
    named = module.named_parameters(remove_duplicate=False)
    return {name: weight for name, weight in named if id(weight) in frozen}
