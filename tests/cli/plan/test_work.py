"""Operations, traffic and seconds follow closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ragen_pl.cli.plan.devices import EFFICIENCY, Device
from ragen_pl.cli.plan.networks import Counts, Gathered, MetaNetworks
from ragen_pl.cli.plan.setting import Cluster, PlanInput
from ragen_pl.cli.plan.shapes import SHAPES
from ragen_pl.cli.plan.work import (
    CommBytes,
    Flops,
    FlopsPerToken,
    count_traffic,
    count_work,
    expect_seconds,
)
from ragen_pl.models.lora import LoRA
from tests.cli.plan.settings import setting

COUNTS = Counts(100, 80, 0, 0, 180, weight_bytes=720, policy_bytes=400, gradient_bytes=720)
GATHERED = Gathered(policy=200, networks=360, at_work=90)
PRODUCTS = FlopsPerToken(backbone=10, attention=2, head=5)
FORWARD = 12 * 64 * (10 + 2 * 32)
SCORED = FORWARD + 12 * 20 * 5


def test_a_forward_pass_costs_what_the_operations_say() -> None:
    shape = SHAPES["qwen2.5-0.5b"]
    networks = MetaNetworks.of(setting(shape=shape))
    ids = torch.zeros(2, 32, dtype=torch.long, device="meta")
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        networks.model.set_attn_implementation("eager")
        mask = torch.zeros(2, 1, 32, 32, device="meta")
        networks.model(ids, attention_mask=mask, use_cache=False)
    # Eager attention computes what is masked, too: a token attends to all of a row.
    products = FlopsPerToken.of(networks)
    # Some versions of transformers also count the angles of the positions as a product.
    assert counter.get_total_flops() == pytest.approx(
        products.forward(64, 2 * 32, scored=64), rel=1e-6
    )


def in_three_updates(given: PlanInput) -> PlanInput:
    """Collect as much for three updates, the later of which need old log-probs."""
    rollout = replace(given.rollout, num_groups=given.rollout.num_groups // 3, online_k=3)
    return replace(given, rollout=rollout)


def test_an_update_is_three_forward_passes_and_adapters_take_two() -> None:
    thrice = in_three_updates(setting())
    assert count_work(thrice, PRODUCTS) == Flops(SCORED, SCORED, 3 * SCORED)
    assert count_work(setting(), PRODUCTS) == Flops(SCORED, 0.0, 3 * SCORED)
    lora = setting(lora=LoRA(), checkpointing=True)
    assert count_work(lora, PRODUCTS).update == 2 * SCORED + FORWARD
    critic = count_work(in_three_updates(setting(critic=True, keep_fraction=0.5)), PRODUCTS)
    assert critic == Flops(SCORED, FORWARD + SCORED / 2, 3 * (SCORED / 2 + FORWARD))
    sampled = replace(setting().optimization, old_log_probs="sampled")
    assert count_work(replace(thrice, optimization=sampled), PRODUCTS).annotate == 0


def test_replicas_send_gradients_and_shards_send_weights() -> None:
    assert count_traffic(setting(), COUNTS, GATHERED, Cluster()) == CommBytes(0, 0, 0)
    assert count_traffic(setting(), COUNTS, GATHERED, Cluster(4)).update == 2 * 0.75 * 720
    sharded = count_traffic(setting(), COUNTS, GATHERED, Cluster(4, sharded=True))
    batches = 2  # four rows a process, two a micro-batch
    update = 0.75 * (2 * 360 + 720) * batches
    assert sharded == CommBytes(0.75 * 200, 0.75 * (360 - 200) * batches, update)
    apart = count_traffic(in_three_updates(setting()), COUNTS, GATHERED, Cluster(4, sharded=True))
    assert apart.annotate == 0.75 * 360 * batches


@pytest.mark.parametrize(("sharded", "update"), [(False, 3.0 + 2.0), (True, 3.0)])
def test_seconds_are_of_arithmetic_traffic_and_sampling(sharded: bool, update: float) -> None:
    compute, rate = EFFICIENCY.compute, EFFICIENCY.bandwidth
    device = Device(1, 0, 1 / compute, 1 / rate, 1 / rate, 0.5 / rate, 0.0, "made up")
    cluster = Cluster(2, 1, sharded)
    work, traffic = Flops(2.0, 4.0, 6.0), CommBytes(0.5, 0.0, 2.0)
    seconds = expect_seconds(setting(), work, traffic, 0.25, cluster, device)
    assert seconds.collect == pytest.approx(1.0 + 0.5 + 20 * 0.25)
    assert (seconds.annotate, seconds.update) == pytest.approx((2.0, update))
    slow = replace(device, dispatch=1.0)  # five layers, twenty steps
    assert expect_seconds(setting(), work, traffic, 0.25, cluster, slow).collect == pytest.approx(
        1.5 + 100
    )
