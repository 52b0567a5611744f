"""Muon for matrices beside AdamW for the rest is one optimizer that computes what the two do."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from ragen_pl.algorithms.optimization import Muon, Optimization
from ragen_pl.distributed.sharding import full_tensor, load_full_optimizer_state, shard
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.training import muon
from ragen_pl.training.optimizers import build_optimizer
from ragen_pl.training.update import clip_and_step
from tests.support.toy_env import MODEL

MUON = Muon(lr_factor=3.0, momentum=0.9, nesterov=False)
CONFIG = Optimization(weight_decay=0.1, betas=(0.8, 0.9), muon=MUON)
RATES = ({"policy": 1e-2, "critic": 3e-2}, {"policy": 2e-2, "critic": 1e-2})
"""Learning rates of even and of odd steps."""
WITHOUT_LIMIT = 1e9


def make_parts() -> dict[str, nn.Module]:
    """Make a policy's model and a critic, of equal weights each time."""
    language = TrainableModel(MODEL, None, False, 0).build(["left", "right"])
    return {"policy": Policy(language.model).model, "critic": Critic.like(language.model)}


def named(parts: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{part}.{name}": weight
        for part, network in parts.items()
        for name, weight in network.named_parameters()
    }


def draw_gradients(weights: Iterable[nn.Parameter], number: int) -> None:
    for position, weight in enumerate(weights):
        generator = torch.Generator().manual_seed(1000 * number + position)
        weight.grad = torch.randn(weight.shape, generator=generator)


def clipped_step(
    optimizer: torch.optim.Optimizer, number: int, limit: float = WITHOUT_LIMIT
) -> dict[str, Tensor] | None:
    return clip_and_step(cast(LightningOptimizer, optimizer), RATES[number % 2], limit)


def step(
    parts: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    number: int,
    limit: float = WITHOUT_LIMIT,
) -> dict[str, Tensor] | None:
    draw_gradients(named(parts).values(), number)
    return clipped_step(optimizer, number, limit)


def is_matrix(name: str) -> bool:
    """Whether a name is that of a projection of a layer: the models' own names, as a check on what
    was read off the modules."""
    return name.endswith("_proj.weight")


def test_it_is_pytorchs_muon_and_pytorchs_adamw_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(muon, "orthogonalization_dtype", lambda device: torch.bfloat16)
    ours, theirs = make_parts(), make_parts()
    optimizer = build_optimizer(ours, CONFIG)
    plain: dict[str, list[torch.optim.Optimizer]] = {}
    for part in theirs:
        of_part = {n: w for n, w in named(theirs).items() if n.startswith(part)}
        of_matrices = torch.optim.Muon(
            [w for n, w in of_part.items() if is_matrix(n)],
            weight_decay=0.1,
            momentum=0.9,
            nesterov=False,
            adjust_lr_fn="match_rms_adamw",
        )
        rest = [w for n, w in of_part.items() if not is_matrix(n)]
        adamw = torch.optim.AdamW(rest, betas=(0.8, 0.9), weight_decay=0.1, fused=True)
        plain[part] = [of_matrices, adamw]
    begin = {name: weight.detach().clone() for name, weight in named(ours).items()}
    for number in range(3):
        step(ours, optimizer, number)
        draw_gradients(named(theirs).values(), number)
        for part, both in plain.items():
            for each, factor in zip(both, (3.0, 1.0), strict=True):
                for group in each.param_groups:
                    group["lr"] = factor * RATES[number % 2][part]
                each.step()
        for name, weight in named(ours).items():
            assert torch.equal(weight, named(theirs)[name]), name
    assert all(not torch.equal(weight, begin[name]) for name, weight in named(ours).items())
    assert sum(map(is_matrix, begin)) == 2 * 7


@pytest.mark.parametrize(
    ("muon", "names"),
    [(None, ["policy", "critic"]), (MUON, ["policy/muon", "critic/muon", "policy", "critic"])],
)
def test_every_group_has_a_name_by_which_its_rate_is_logged(
    muon: Muon | None, names: list[str]
) -> None:
    """Lightning's LearningRateMonitor refuses two groups of one name."""
    optimizer = build_optimizer(make_parts(), replace(CONFIG, muon=muon))
    assert [group["name"] for group in optimizer.param_groups] == names
    assert [group["part"] for group in optimizer.param_groups] == [
        name.removesuffix("/muon") for name in names
    ]


def test_without_muon_it_is_adamw_alone() -> None:
    ours, theirs = make_parts(), make_parts()
    optimizer = build_optimizer(ours, replace(CONFIG, muon=None))
    assert type(optimizer) is torch.optim.AdamW
    groups = [{"part": name, "params": list(part.parameters())} for name, part in theirs.items()]
    plain = torch.optim.AdamW(groups, betas=(0.8, 0.9), weight_decay=0.1, fused=True)
    for number in range(2):
        step(ours, optimizer, number)
        step(theirs, plain, number)
    for name, weight in named(ours).items():
        assert torch.equal(weight, named(theirs)[name]), name


def test_a_part_is_clipped_by_one_norm_over_matrices_and_the_rest() -> None:
    parts = make_parts()
    optimizer = build_optimizer(parts, CONFIG)
    norms = step(parts, optimizer, 0, limit=0.5)
    assert norms is not None
    draw_gradients(named(parts).values(), 0)
    for part in parts:
        gradients = [w.grad for n, w in named(parts).items() if n.startswith(part)]
        expected = torch.stack([g.norm() for g in gradients if g is not None]).norm()
        torch.testing.assert_close(norms[part], expected)
        for name, weight in named(parts).items():
            if name.startswith(part) and is_matrix(name):
                assert weight.grad is not None
                kept = optimizer.state[weight]["momentum_buffer"]  # a tenth of the clipped gradient
                torch.testing.assert_close(kept, 0.1 * weight.grad * 0.5 / expected)


def test_parts_without_gradients_and_skipped_steps_change_nothing() -> None:
    parts = make_parts()
    optimizer = build_optimizer(parts, CONFIG)
    step(parts, optimizer, 0)
    begin = copy.deepcopy([w.detach() for w in parts["critic"].parameters()])
    draw_gradients(parts["policy"].parameters(), 1)
    norms = clipped_step(optimizer, 1)
    assert norms is not None
    assert norms.keys() == {"policy"}
    assert all(map(torch.equal, begin, parts["critic"].parameters()))
    begin = copy.deepcopy([w.detach() for w in named(parts).values()])
    draw_gradients(named(parts).values(), 2)
    first = next(parts["policy"].parameters())
    first.grad = torch.full_like(first, float("nan"))
    assert clipped_step(optimizer, 2) is None
    assert all(map(torch.equal, begin, named(parts).values()))


def test_a_cleared_state_begins_anew() -> None:
    """As at the first RL iteration."""
    parts, fresh = make_parts(), make_parts()
    optimizer = build_optimizer(parts, CONFIG)
    step(parts, optimizer, 0)
    optimizer.state.clear()
    for name, weight in named(fresh).items():
        weight.data.copy_(named(parts)[name])
    step(parts, optimizer, 1)
    step(fresh, build_optimizer(fresh, CONFIG), 1)
    for name, weight in named(parts).items():
        assert torch.equal(weight, named(fresh)[name]), name


@pytest.mark.parametrize("muon", [None, MUON])
def test_a_saved_state_goes_on_bit_for_bit(muon: Muon | None) -> None:
    whole, resumed = make_parts(), make_parts()
    optimizer = build_optimizer(whole, replace(CONFIG, muon=muon))
    step(whole, optimizer, 0)
    saved = copy.deepcopy(optimizer.state_dict())
    other = build_optimizer(resumed, replace(CONFIG, muon=muon))
    step(resumed, other, 5)  # the state that is replaced
    for name, weight in named(resumed).items():
        weight.data.copy_(named(whole)[name])
    other.load_state_dict(saved)
    moments = {name: other.state[weight].keys() for name, weight in named(resumed).items()}
    adamw = {"step", "exp_avg", "exp_avg_sq"}
    for name, kept in moments.items():
        assert kept == ({"momentum_buffer"} if muon and is_matrix(name) else adamw)
    for number in (1, 2):
        step(whole, optimizer, number)
        step(resumed, other, number)
    for name, weight in named(resumed).items():
        assert torch.equal(weight, named(whole)[name]), name


@pytest.mark.parametrize("muon", [None, MUON])
def test_settings_are_those_of_the_configuration_and_not_of_the_state(muon: Muon | None) -> None:
    saved = build_optimizer(make_parts(), replace(CONFIG, muon=muon)).state_dict()
    changed = replace(CONFIG, muon=muon and Muon(momentum=0.5), betas=(0.1, 0.2), weight_decay=0.3)
    other = build_optimizer(make_parts(), changed)
    other.load_state_dict(saved)
    for group in other.param_groups:
        assert group["weight_decay"] == 0.3
        assert group.get("betas", (0.1, 0.2)) == (0.1, 0.2)
        assert group.get("momentum", 0.5) == 0.5


# --- shards -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """Make a process group of one rank, and its mesh; two ranks are in
    ``tests/distributed/test_muon_on_two_ranks.py``."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_sharded_matrices_make_the_same_steps_and_load_the_same_state(mesh: DeviceMesh) -> None:
    plain, sharded = make_parts(), make_parts()
    critic = sharded["critic"]
    shard(critic, mesh)
    ours, theirs = {"critic": critic}, {"critic": plain["critic"]}
    optimizer, expected = (build_optimizer(parts, CONFIG) for parts in (ours, theirs))

    def both(number: int) -> None:
        step(theirs, expected, number)
        gradients: Any = named(theirs)
        draw_gradients(named(theirs).values(), number)
        for name, weight in named(ours).items():
            whole = gradients[name].grad
            assert isinstance(weight, DTensor)
            weight.grad = DTensor.from_local(whole, mesh, weight.placements)
        clipped_step(optimizer, number)
        for name, weight in named(ours).items():
            assert torch.equal(full_tensor(weight.detach()), named(theirs)[name]), name

    both(0)
    both(1)
    load_full_optimizer_state(copy.deepcopy(expected.state_dict()), optimizer)
    both(2)
    assert all(
        isinstance(moments["momentum_buffer"], DTensor)
        for weight, moments in optimizer.state.items()
        if "momentum_buffer" in moments
    )


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"weight_decay": -1.0}, r"optimization.weight_decay is -1.0; it must not be negative"),
        ({"betas": (0.9, 1.5)}, r"optimization.betas are \(0.9, 1.5\); both must be in \[0, 1\)"),
        ({"betas": (-0.1, 0.9)}, r"optimization.betas are \(-0.1, 0.9\)"),
    ],
)
def test_what_no_optimizer_takes_is_refused_before_weights_are_built(
    keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        Optimization(**keys)
