"""Shard networks over the ranks (FSDP2), make them whole for a while, and gather what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from ragen_pl.distributed.collectives import broadcast_from_rank0, gather_objects, rank

_GIB = 1 << 30

_gathered_in: WeakKeyDictionary[nn.Module, torch.dtype] = WeakKeyDictionary()
"""What the weights of a network are gathered in, where that is not their own type."""


def transformer_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the blocks of the network's largest stack, which are alike; none where none are
    stacked."""
    stacks = [part for part in network.modules() if isinstance(part, nn.ModuleList)]
    sizes = [sum(weight.numel() for weight in stack.parameters()) for stack in stacks]
    return list(stacks[sizes.index(max(sizes))]) if stacks else []


def shard(network: nn.Module, mesh: DeviceMesh, gather_in: torch.dtype | None = None) -> None:
    """Shard a policy or critic in place: each of its stacked layers, then the rest as one.

    Its weights are the first rank's; the other ranks' need shapes alone.
    Tied embeddings share the rest's unit, as they must. Weights are whole only while a pass needs
    them, the rest's too: between passes every parameter is a shard, which optimizer, checkpoint and
    copies from one network to the other can rely on.

    Args:
        network: Called as ``network(input_ids, mask, padding)``, or by a method that its
            ``other_forwards`` names; never through a part of it, since the call makes the parts
            whole.
        mesh: One-dimensional.
        gather_in: The type in which weights are whole; None for their own. Call the network under
            autocast to it, which would otherwise keep a copy in it of every weight for the
            backward pass, a whole one. Shards stay in their own type, and gradients are summed in
            float32.
    """
    held = {
        name: weight.detach() if rank() == 0 else weight.detach().to("meta")
        for name, weight in network.named_parameters()
    }
    policy = MixedPrecisionPolicy()
    if gather_in is not None:
        # Autocast decides what is computed in which type, as it does without shards.
        policy = MixedPrecisionPolicy(gather_in, torch.float32, cast_forward_inputs=False)
        _gathered_in[network] = gather_in
        _keep_types_of_states(network)
    for layer in transformer_blocks(network):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(network, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    for name in getattr(network, "other_forwards", ()):
        register_fsdp_forward_method(network, name)
    _take_over(network, held)


def _take_over(network: nn.Module, held: dict[str, Tensor]) -> None:
    """Give every rank its shards of the first rank's weights, and its buffers, one at a time."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.copy_(distribute_like(held.pop(name), weight))
        for buffer in network.buffers():
            buffer.copy_(broadcast_from_rank0(buffer))


def _keep_types_of_states(network: nn.Module) -> None:
    """Let embeddings return states in the type of their shards.

    Autocast does not touch them: layers add to the states that an embedding returns, and in
    bfloat16 every sum would be rounded.
    """

    def keep(dtype: torch.dtype) -> Any:
        return lambda _, __, states: states.to(dtype)

    for part in network.modules():
        if isinstance(part, nn.Embedding):
            part.register_forward_hook(keep(part.weight.dtype))


@contextmanager
def summon_full_params(network: nn.Module | None) -> Iterator[None]:
    """Keep a network's weights whole, so that a rank can use any part of it without the others.

    Every rank must enter it together; nothing is exchanged within it or on the way out. Gradients
    are then those of this rank and of whole weights: take them with ``torch.autograd.grad``, from
    parameters that are asked for within. Without a network, or one that is not sharded, this does
    nothing.

    Raises:
        RuntimeError: on all ranks, when the whole weights do not fit one device on any.
    """
    if not isinstance(network, FSDPModule):
        yield
        return
    parts = [part for part in network.modules() if isinstance(part, FSDPModule)]
    weight, dtype = next(network.parameters()), _gathered_in.get(network)
    whole_bytes = sum(p.numel() * (dtype or p.dtype).itemsize for p in network.parameters())
    _check_room(whole_bytes, weight.device)
    network.set_reshard_after_forward(False)
    network.set_reshard_after_backward(False)
    try:
        # A pass over no rows gathers all weights. It goes through the whole network first of all,
        # as FSDP asks for: the first module that is called is the root.
        nothing = torch.zeros(0, 2, dtype=torch.long, device=weight.device)
        autocast = torch.autocast(weight.device.type, dtype) if dtype else nullcontext()
        with torch.no_grad(), autocast:
            network(nothing, nothing.bool(), nothing.bool())
        yield
    finally:
        network.set_reshard_after_forward(True)
        network.set_reshard_after_backward(True)
        for part in parts:
            part.reshard()


def _check_room(needed: int, device: torch.device) -> None:
    """Refuse, on all ranks, to gather what would not fit on one of them."""
    free = [needed]
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = gather_objects(torch.cuda.mem_get_info(device)[0] + reusable)
    if min(free) < needed:
        raise RuntimeError(
            f"trainer.strategy is fsdp, and rollouts need the policy whole on every device: "
            f"{needed / _GIB:.1f} GiB, but a device has {min(free) / _GIB:.1f} GiB free. Decoding "
            "on sharded weights is not supported: set trainer.precision to bf16-mixed, in which "
            "they are whole in half of float32's bytes, or take a smaller model"
        )


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor as one process would hold it; of a shard every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state as one process would hold it; every rank must call it.

    Returns:
        Tensors by name, tied ones as one. What is sharded comes to the first rank's CPU memory,
        and the others get nothing.
    """
    state: dict[str, Tensor] = module.state_dict(keep_vars=True)  # else tied ones would be two
    if not any(isinstance(tensor, DTensor) for tensor in state.values()):
        return {name: tensor.detach() for name, tensor in state.items()}
    found: dict[int, Tensor] = {}
    for tensor in state.values():
        if id(tensor) not in found:
            complete = full_tensor(tensor.detach())
            found[id(tensor)] = complete.cpu() if rank() == 0 else torch.empty(0)
    return {name: found[id(tensor)] for name, tensor in state.items()} if rank() == 0 else {}


def distribute_like(value: Tensor, template: Tensor) -> Tensor:
    """Cut the first rank's whole tensor as the template is; other ranks' need the shape alone.

    Every rank must call it; without a sharded template the value stays as it is.
    """
    if not isinstance(template, DTensor):
        return value
    value = torch.empty_like(value, device=template.device) if value.is_meta else value
    return distribute_tensor(
        value.to(template.device), template.device_mesh, list(template.placements)
    )


def load_full_state(values: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into those of the same names, in place; every rank must call it."""
    with torch.no_grad():
        for name, value in values.items():
            live[name].copy_(distribute_like(value, live[name]))


def load_full_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Load a whole optimizer state, its moments sharded as the weights they belong to are.

    Weights are told by their order, whatever they are called. Every rank must call it.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    places = [place for group in state["param_groups"] for place in group["params"]]
    of_place = dict(zip(places, weights, strict=True))
    moments = {
        place: {
            name: distribute_like(value, of_place[place])
            if isinstance(value, Tensor) and value.shape == of_place[place].shape
            else value
            for name, value in entry.items()
        }
        for place, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def materialize(networks: Iterable[nn.Module]) -> None:
    """Move what lies on the meta device to the CPU, in place, without writing to it: memory that
    nobody writes to costs nothing. Weights that several modules share stay shared."""
    blank: dict[Tensor, nn.Parameter] = {}
    for part in nn.ModuleList(networks).modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                if weight not in blank:
                    blank[weight] = nn.Parameter(_empty(weight), weight.requires_grad)
                part._parameters[name] = blank[weight]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = _empty(buffer)


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def frozen_base_weights(module: nn.Module, policy: nn.Module) -> dict[str, Tensor]:
    """Return the policy's frozen weights under every name that ``module`` has for them."""
    frozen = {id(weight) for weight in policy.parameters() if not weight.requires_grad}
    named = module.named_parameters(remove_duplicate=False)
    return {name: weight for name, weight in named if id(weight) in frozen}
