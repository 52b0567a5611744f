"""A process's memory is the sum of its parts, divided among processes where it is sharded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from ragen_pl.algorithms.config import KLPenalty
from ragen_pl.algorithms.optimization import Muon
from ragen_pl.cli.plan.inputs import Cluster
from ragen_pl.cli.plan.memory import MemoryPlan, PhasePeaks, plan_memory
from ragen_pl.cli.plan.networks import GatheredBytes, MetaNetworks, ParameterCounts
from ragen_pl.cli.plan.passes import PassPeak, StepPeak
from ragen_pl.models.lora import LoRA
from ragen_pl.training.optimizers import build_optimizer
from tests.cli.plan.inputs import SHAPE, parameters_of, plan_input

COUNTS = ParameterCounts(
    policy=100,
    critic=80,
    reference=0,
    adapters=0,
    trainable=180,
    weight_bytes=720,
    gradient_bytes=720,
    exported_bytes=400,
)
PEAKS = PhasePeaks(
    rollout=PassPeak(10, 200),
    score_pass=PassPeak(20, 190),
    update=PassPeak(300, 360),
    kv_cache=50,
)
GATHERED = GatheredBytes(policy=200, during_pass=90)
LAYER = 2 * 64 * (64 + 32) + 3 * 64 * 96 + 2 * 64


def plan(cluster: Cluster) -> MemoryPlan:
    return plan_memory(plan_input(), COUNTS, PEAKS, cluster, GATHERED)


def batches(rows: int) -> int:
    return 2 * 60 * rows * 64


def test_networks_are_counted_once() -> None:
    backbone = 5 * LAYER + 64 + 300 * 64
    counts = MetaNetworks.of(plan_input(critic=True, kl=KLPenalty())).counts()
    policy = backbone + 300 * 64
    assert (counts.policy, counts.critic, counts.reference) == (policy, backbone + 65, policy)
    assert counts.trainable == counts.policy + counts.critic
    assert counts.weight_bytes == 4 * (2 * policy + backbone + 65)
    assert counts.gradient_bytes * 2 == counts.moment_bytes == 8 * counts.trainable


def test_adapters_share_the_base() -> None:
    counts = MetaNetworks.of(plan_input(critic=True, kl=KLPenalty(), lora=LoRA(rank=4))).counts()
    adapters = 5 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96))
    assert (counts.adapters, counts.reference) == (3 * adapters, adapters)
    assert (counts.critic, counts.trainable) == (adapters + 65, 2 * adapters + 65)
    assert counts.policy == parameters_of(SHAPE) + adapters


def test_one_process_holds_everything() -> None:
    memory = plan(Cluster())
    always = 720 + 1440 + batches(12)
    assert memory.totals == {
        "rollout": always + 50 + 200 + 10,
        "score pass": always + 190 + 20,
        "update": always + 720 + 360 + 300,
    }
    assert (memory.peak_phase, memory.peak) == ("update", always + 1380)


def test_sharding_divides_and_gathers() -> None:
    memory = plan(Cluster(2, 2, sharded=True))
    always = (720 + 1440) // 4 + batches(4)
    assert memory.totals == {
        "rollout": always + 50 + 200 + 10,
        "score pass": always + 90 + 20,
        "update": always + 180 + 90 + 300,
    }


@pytest.mark.parametrize(("bf16", "width"), [(True, 2), (False, 4)])
def test_weights_are_gathered_in_the_dtype_of_matrix_products(bf16: bool, width: int) -> None:
    networks = MetaNetworks.of(plan_input(critic=True))
    outside_blocks = 64 + 2 * 300 * 64
    assert networks.gathered_bytes(bf16) == GatheredBytes(
        policy=width * parameters_of(SHAPE), during_pass=width * (outside_blocks + 2 * LAYER)
    )


def test_adapters_of_one_network_are_sharded_with_their_base() -> None:
    assert plan_input(lora=LoRA()).can_be_sharded
    assert not plan_input(lora=LoRA(), critic=True).can_be_sharded
    assert not plan_input(lora=LoRA(), kl=KLPenalty()).can_be_sharded


@pytest.mark.parametrize(("cluster", "rows"), [(Cluster(), 12), (Cluster(2), 8), (Cluster(8), 4)])
def test_groups_stay_whole(cluster: Cluster, rows: int) -> None:
    assert plan_input().rows(cluster) == rows


MUON = pytest.mark.parametrize("muon", [None, Muon()], ids=["AdamW", "Muon"])
LORA = pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["all weights", "adapters"])


@MUON
@LORA
def test_moments_are_those_of_the_real_optimizer(muon: Muon | None, lora: LoRA | None) -> None:
    given = plan_input(critic=True, lora=lora, muon=muon)
    networks = MetaNetworks.of(given)
    counts = networks.counts(muon=muon is not None)
    beside = networks.counts(muon=muon is not None, hindsight=True)
    networks.to_fake_cpu()
    assert networks.critic is not None
    policy = {"policy": networks.policy.model}
    optimizers = [
        build_optimizer(parts, given.optimization)
        for parts in ({**policy, "critic": networks.critic}, policy)  # of RL and of hindsight
    ]
    held = []
    for optimizer in optimizers:
        for weight in (w for group in optimizer.param_groups for w in group["params"]):
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        found = [value for value in tree_iter(dict(optimizer.state)) if isinstance(value, Tensor)]
        held.append(sum(value.nbytes for value in found if value.dim() > 0))
    assert held == [counts.moment_bytes, beside.moment_bytes - counts.moment_bytes]
    if muon is None:
        assert counts.moment_bytes == 2 * counts.gradient_bytes
    elif lora is None:
        matrices = 2 * 64 * (64 + 32) + 3 * 64 * 96
        assert counts.moment_bytes == 2 * counts.gradient_bytes - 4 * 2 * 5 * matrices
    else:
        assert counts.moment_bytes == counts.gradient_bytes + 4 * 65


def test_muons_step_is_a_phase_that_gathers_one_matrix_at_a_time() -> None:
    peaks = replace(PEAKS, step=StepPeak(temporary=70, whole=30))
    counts = replace(COUNTS, muon_bytes=400)
    alone = plan_memory(plan_input(muon=Muon()), counts, peaks, Cluster(), GATHERED)
    always = 720 + 2 * 720 - 400 + batches(12)
    assert alone.totals["optimizer step"] == always + 720 + 70
    assert alone.totals["update"] == always + 720 + 360 + 300
    cluster = Cluster(2, 2, sharded=True)
    sharded = plan_memory(plan_input(muon=Muon()), counts, peaks, cluster, GATHERED)
    always = (720 + 2 * 720 - 400) // 4 + batches(4)
    assert sharded.totals["optimizer step"] == always + 180 + 30 + 70
