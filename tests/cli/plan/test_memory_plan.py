"""A process's memory adds up, and is divided where it is sharded."""

from __future__ import annotations

import pytest

from ragen_pl.algorithms.config import KLPenalty
from ragen_pl.cli.plan.memory import Passes, plan_memory
from ragen_pl.cli.plan.networks import Counts, Gathered, MetaNetworks
from ragen_pl.cli.plan.passes import Peak
from ragen_pl.cli.plan.setting import Cluster
from ragen_pl.models.lora import LoRA
from tests.cli.plan.settings import SHAPE, setting

COUNTS = Counts(100, 80, 0, 0, 180, weight_bytes=720, policy_bytes=400, gradient_bytes=720)
PASSES = Passes(collect=Peak(10, 200), annotate=Peak(20, 190), update=Peak(300, 360), cache=50)
GATHERED = Gathered(policy=200, networks=360, at_work=90)
LAYER = 2 * 64 * (64 + 32) + 3 * 64 * 96 + 2 * 64


def rollout(rows: int) -> int:
    return 2 * 51 * rows * 64


def test_networks_are_counted_once() -> None:
    backbone = 5 * LAYER + 64 + 300 * 64
    counts = MetaNetworks.of(setting(critic=True, kl=KLPenalty())).counts()
    policy = backbone + 300 * 64
    assert (counts.policy, counts.critic, counts.reference) == (policy, backbone + 65, policy)
    assert counts.trainable == counts.policy + counts.critic
    assert counts.weight_bytes == 4 * (2 * policy + backbone + 65)
    assert counts.gradient_bytes * 2 == counts.moment_bytes == 8 * counts.trainable


def test_adapters_share_the_base() -> None:
    counts = MetaNetworks.of(setting(critic=True, kl=KLPenalty(), lora=LoRA(rank=4))).counts()
    adapters = 5 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96))
    assert (counts.adapters, counts.reference) == (3 * adapters, adapters)
    assert (counts.critic, counts.trainable) == (adapters + 65, 2 * adapters + 65)
    assert counts.policy == SHAPE.parameters + adapters


def test_one_process_holds_everything() -> None:
    memory = plan_memory(setting(), COUNTS, PASSES, Cluster(), gathered=GATHERED)
    always = 720 + 1440 + rollout(12)
    assert memory.totals == {
        "collect": always + 50 + 200 + 10,
        "annotate": always + 190 + 20,
        "update": always + 720 + 360 + 300,
    }
    assert (memory.fullest, memory.peak) == ("update", always + 1380)


def test_sharding_divides_and_gathers() -> None:
    memory = plan_memory(setting(), COUNTS, PASSES, Cluster(2, 2, sharded=True), gathered=GATHERED)
    always = (720 + 1440) // 4 + rollout(4)
    assert memory.totals == {
        "collect": always + 50 + 200 + 10,
        "annotate": always + 90 + 20,
        "update": always + 180 + 90 + 300,
    }


@pytest.mark.parametrize(("bf16", "width"), [(True, 2), (False, 4)])
def test_weights_are_gathered_in_the_type_of_products(bf16: bool, width: int) -> None:
    networks = MetaNetworks.of(setting(critic=True))
    policy, backbone = SHAPE.parameters, 5 * LAYER + 64 + 300 * 64
    around = 64 + 2 * 300 * 64
    assert networks.gathered(bf16) == Gathered(
        width * policy, width * (policy + backbone + 65), width * (around + 2 * LAYER)
    )


def test_adapters_of_one_network_are_sharded_with_their_base() -> None:
    assert setting(lora=LoRA()).can_be_sharded
    assert not setting(lora=LoRA(), critic=True).can_be_sharded
    assert not setting(lora=LoRA(), kl=KLPenalty()).can_be_sharded


def test_replicas_lay_their_gradients_out_twice_to_sum_them() -> None:
    memory = plan_memory(setting(), COUNTS, PASSES, Cluster(2), gathered=GATHERED)
    assert memory.totals["step"] == 720 + 1440 + rollout(8) + 720 + 2 * 720
    assert memory.fullest == "step"


@pytest.mark.parametrize(("cluster", "rows"), [(Cluster(), 12), (Cluster(2), 8), (Cluster(8), 4)])
def test_groups_stay_whole(cluster: Cluster, rows: int) -> None:
    assert setting().rows(cluster) == rows
