"""Weights gathered in bfloat16 are freed after use, and results stay close to autocast's."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ragen_pl.distributed.sharding import full_state_dict, full_tensor, shard, summon_full_params
from ragen_pl.models.compile import compile_layers
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.policy import Policy

IDS = torch.arange(6, 14)[None]
HERE = torch.ones_like(IDS, dtype=torch.bool)
SAMPLED = (torch.arange(8) > 2)[None]


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """Make a process group of one rank, and its mesh."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def plain() -> Policy:
    model = EmbeddedModel(num_layers=6, init_std=0.1)
    policy = Policy(model.build([f"w{i}" for i in range(40)], seed=3).model, with_values=True)
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.weight, generator=torch.Generator().manual_seed(4))
    return policy


def sharded(plain: Policy, mesh: DeviceMesh, gather_dtype: torch.dtype | None) -> Policy:
    policy = copy.deepcopy(plain)
    shard(policy, mesh, gather_dtype)
    return policy


def learn(policy: Policy) -> Tensor:
    scores = policy(IDS, SAMPLED, HERE)
    assert scores.values is not None
    (scores.log_probs.sum() + scores.entropy.sum() + scores.values.sum()).backward()
    return scores.log_probs.detach()  # type: ignore[no-any-return]


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The storages that operations within this context allocate, while they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if type(value) is Tensor:
                self.made.add(value.untyped_storage())
        return result

    @property
    def total(self) -> int:
        """Their bytes now: resharding empties a weight's storage and keeps the object."""
        return sum(storage.nbytes() for storage in self.made)


@pytest.mark.parametrize("gather_dtype", [torch.bfloat16, None], ids=str)
def test_no_whole_copies_are_left_after_forward_and_backward(
    plain: Policy, mesh: DeviceMesh, gather_dtype: torch.dtype | None
) -> None:
    """Autocast alone would keep one of every matrix for its gradient."""
    policy = sharded(plain, mesh, gather_dtype)
    copies = 2 * sum(weight.numel() for weight in plain.parameters() if weight.dim() == 2)
    gradients = 4 * sum(weight.numel() for weight in plain.parameters())
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # as Lightning's
        learn(policy)  # allocations made once, such as the sizes of the units, are not counted
        policy.zero_grad()
        with Alive() as alive:
            scores = policy(IDS, SAMPLED, HERE)
            after_forward = alive.total
            (scores.log_probs.sum() + scores.values.sum()).backward()
            del scores
            after_backward = alive.total - gradients
    if gather_dtype is None:
        assert after_forward > 0.9 * copies
    else:
        assert after_forward < 0.2 * copies  # mostly activations, of five tokens
        assert after_backward < 0.01 * copies


def gradients(policy: Policy) -> dict[str, Tensor]:
    return {
        name: full_tensor(p.grad) for name, p in policy.named_parameters() if p.grad is not None
    }


def relative(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Return the distance between all gradients, relative to their norm."""
    assert ours.keys() == theirs.keys()
    apart = sum(float((ours[name] - value).square().sum()) for name, value in theirs.items())
    return float((apart / sum(float(value.square().sum()) for value in theirs.values())) ** 0.5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_it_computes_what_autocast_does(
    plain: Policy, mesh: DeviceMesh, checkpointing: bool
) -> None:
    """Up to rounding, also of embeddings and norms, which autocast leaves in float32: the error is
    at most 1.5 times autocast's, and the two differ by at most twice as much."""
    ours, theirs, exact = (
        sharded(plain, mesh, torch.bfloat16),
        copy.deepcopy(plain),
        copy.deepcopy(plain),
    )
    if checkpointing:
        ours.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
        ours.train()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(learn(ours), learn(theirs), rtol=0, atol=0.1)
    learn(exact)
    rounding = relative(gradients(theirs), gradients(exact))
    assert relative(gradients(ours), gradients(exact)) < 1.5 * rounding
    assert relative(gradients(ours), gradients(theirs)) < 2 * rounding
    assert rounding < 0.05
    assert {value.dtype for value in gradients(ours).values()} == {torch.float32}


def test_a_pass_over_no_rows_adds_nothing(plain: Policy, mesh: DeviceMesh) -> None:
    policy = sharded(plain, mesh, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        learn(policy)
        before = {name: value.clone() for name, value in gradients(policy).items()}
        scores = policy(IDS[:0], SAMPLED[:0], HERE[:0])
        (scores.log_probs.sum() + scores.values.sum()).backward()
    assert relative(gradients(policy), before) == 0


def test_unsharded_weights_are_those_of_the_trainer(plain: Policy, mesh: DeviceMesh) -> None:
    policy = sharded(plain, mesh, torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        recomputed = policy(IDS, SAMPLED, HERE).log_probs
        values = policy.values(IDS, SAMPLED, HERE)
    with summon_full_params(policy):
        assert {weight.dtype for weight in policy.parameters()} == {torch.bfloat16}
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(policy(IDS, SAMPLED, HERE).log_probs, recomputed)
            assert torch.equal(policy.values(IDS, SAMPLED, HERE), values)
    for name, value in full_state_dict(policy).items():
        assert value.dtype == torch.float32
        assert torch.equal(value, plain.state_dict()[name])


def test_what_a_rank_runs_alone_leaves_no_trace(plain: Policy, mesh: DeviceMesh) -> None:
    """FSDP2 prefetches in the order of noted calls: ranks that noted others would wait for ever."""
    policy = sharded(plain, mesh, torch.bfloat16)
    network: Any = policy
    calls = network._get_fsdp_state()._comm_ctx
    hooks = [dict(part._forward_pre_hooks) for part in policy.modules()]
    with summon_full_params(policy):
        noted = list(calls.post_forward_order)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            policy(IDS, SAMPLED, HERE)
        assert calls.post_forward_order == noted
    assert [dict(part._forward_pre_hooks) for part in policy.modules()] == hooks
    with torch.autocast("cpu", torch.bfloat16):
        learn(policy)
    assert gradients(policy)


@pytest.mark.run
def test_compiled_layers_are_gathered_too(
    plain: Policy, mesh: DeviceMesh, graphs: list[Any]
) -> None:
    compiled = copy.deepcopy(plain)
    compile_layers(compiled)
    shard(compiled, mesh, torch.bfloat16)
    policy = sharded(plain, mesh, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(learn(compiled), learn(policy), rtol=0, atol=0.1)
    assert graphs
    assert relative(gradients(compiled), gradients(policy)) < 0.02
