"""The memory of passes equals closed forms, and extrapolated depths equal traced ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ragen_pl.cli.plan import passes
from ragen_pl.cli.plan.inputs import Cluster, PlanInput
from ragen_pl.cli.plan.live_bytes import LiveBytes
from ragen_pl.cli.plan.passes import (
    PassPeak,
    kv_cache_bytes,
    muon_step_peak,
    rollout_peak,
    score_pass_peak,
    update_peak,
)
from ragen_pl.models.kernels.kv_cache import RaggedCache
from ragen_pl.models.lora import LoRA
from ragen_pl.training import muon
from tests.cli.plan.inputs import SHAPE, plan_input


def test_bytes_are_counted_while_they_live() -> None:
    with FakeTensorMode(), LiveBytes() as counter:
        first = torch.zeros(1000)
        second = first.view(10, 100) + 1
        del first
        assert counter.live == 4000
        counter.next_stage()
        third = second @ torch.zeros(100, 5)
        assert third.shape == (10, 5)
        assert counter.live == 4200  # the inputs of the product are freed
    assert counter.peaks == [8000, 6200]


def test_earlier_storages_are_not_counted() -> None:
    with FakeTensorMode():
        before = torch.zeros(1000)
        with LiveBytes() as counter:
            before.mul_(2)
            del before
    assert (counter.live, counter.peaks) == (0, [0])


@pytest.mark.parametrize(
    "given",
    [
        plan_input(attention="grouped_matmul", checkpointing=True),
        plan_input(bf16=False),
        plan_input(lora=LoRA(rank=4)),
    ],
    ids=["bf16", "fp32", "lora"],
)
def test_depth_is_extrapolated_exactly(monkeypatch: pytest.MonkeyPatch, given: PlanInput) -> None:
    assert SHAPE.layers == 5

    def peaks() -> list[PassPeak]:
        return [
            update_peak(given),
            score_pass_peak(given),
            rollout_peak(given, 12, kv_cache_bytes(given, 12), is_captured=False),
        ]

    extrapolated = peaks()
    monkeypatch.setattr(passes, "_TRACED_DEPTHS", (5, 6))  # traced at the real depth
    assert extrapolated == peaks()


@pytest.mark.parametrize(("bf16", "size"), [(False, 4 + 4), (True, 2 + 2)])
def test_the_kv_cache_holds_keys_and_values_of_every_slot(bf16: bool, size: int) -> None:
    # Two heads of width 16; one slot is spare.
    assert kv_cache_bytes(plan_input(bf16=bf16), 12) == 12 * 65 * 2 * 16 * 5 * size


@pytest.mark.parametrize("peak", [score_pass_peak, update_peak])
def test_on_a_gpu_the_logits_of_more_tokens_exist_at_once(
    peak: Callable[[PlanInput], PassPeak],
) -> None:
    vocabulary = 1 << 20  # four tokens' logits in a chunk on a CPU, 32 on a GPU
    given = plan_input(shape=replace(SHAPE, vocabulary=vocabulary), bf16=False)
    tokens = given.micro_batch_rows * given.sampled_tokens
    assert tokens >= 32
    on_cpu, on_gpu = (peak(replace(given, device=device)) for device in ("cpu", "gpu"))
    assert on_gpu.activations - on_cpu.activations >= (32 - 4) * vocabulary * 4


def test_on_a_gpu_the_kv_cache_has_room_for_the_longest_evaluation() -> None:
    given = replace(plan_input(), evaluation_context=200)
    short, long = (kv_cache_bytes(each, 12) for each in (plan_input(), given))
    assert long * 65 == short * 201
    assert kv_cache_bytes(replace(given, device="cpu"), 12) == short  # it grows there
    # Attention reads no further than before.
    assert rollout_peak(given, 12, long, is_captured=False) == rollout_peak(
        plan_input(), 12, short, is_captured=False
    )


def test_the_planned_room_is_that_of_the_real_cache() -> None:
    cache = RaggedCache(2, 200, "meta")
    cache.open_block(1, np.ones(2, np.int64))
    given = replace(plan_input(), evaluation_context=200)
    states = torch.zeros(2, 2, 1, 16, device="meta")
    assert cache._capacity(states) == given.cache_context + 1


def test_autocast_copies_the_weights_of_matrix_products() -> None:
    layer = 2 * 64 * (64 + 32) + 3 * 64 * 96
    given = plan_input(critic=True)
    assert update_peak(given).autocast_copies == 2 * 5 * layer  # of one network at a time
    assert update_peak(plan_input(bf16=False)).autocast_copies == 0
    # Checkpointed layers, and passes without gradients, free their copies at once.
    assert update_peak(plan_input(critic=True, checkpointing=True)).autocast_copies <= 2 * 2 * layer
    assert score_pass_peak(given).autocast_copies <= 2 * layer
    sampling = rollout_peak(given, 12, kv_cache_bytes(given, 12), is_captured=False)
    assert sampling.autocast_copies == 2 * (5 * layer + 300 * 64)  # sampling uses the head


def test_captured_steps_keep_their_logits_twice() -> None:
    """In the graphs' memory, and in the copy that all graphs share."""
    # So many words that sampling is the peak, not a forward pass.
    given = plan_input(shape=replace(SHAPE, vocabulary=20_000), bf16=False)
    cache = kv_cache_bytes(given, 48)
    plain, captured = (rollout_peak(given, 48, cache, is_captured=x) for x in (False, True))
    assert captured.activations - plain.activations == 2 * 4 * 48 * 20_000
    single, sharded = Cluster(), Cluster(2, sharded=True)
    assert replace(given, device="h100").captures_steps(single)
    assert not replace(given, device="h100").captures_steps(sharded)
    assert not replace(given, device="cpu").captures_steps(single)
    assert not replace(given, device="h100", cuda_graphs=False).captures_steps(single)


def test_checkpointing_and_smaller_batches_save_memory() -> None:
    plain = update_peak(plan_input()).activations
    assert update_peak(plan_input(checkpointing=True)).activations < plain
    assert score_pass_peak(plan_input()).activations < plain
    budget = replace(plan_input().optimization, tokens_per_micro_batch=256)
    longer = replace(plan_input(), optimization=budget)
    assert longer.micro_batch_rows == 2 * plan_input().micro_batch_rows
    assert 1.5 * plain < update_peak(longer).activations < 2 * plain


@pytest.mark.parametrize(("device", "width"), [("gpu", 2), ("cpu", 4)])
def test_muons_step_takes_the_largest_stack_of_matrices(device: str, width: int) -> None:
    """The direction, and the matrix before and after an iteration beside two products of it with
    itself, for the two matrices of one shape of five layers: in bfloat16, on a CPU in float32."""
    size, square = 10 * 64 * 96, 10 * 64 * 64
    peak = muon_step_peak(replace(plan_input(), device=device))
    assert peak.whole == 2 * 4 * 64 * 96
    assert peak.temporary == pytest.approx(width * (3 * size + 2 * square), rel=0.001)
    adapters = muon_step_peak(plan_input(lora=LoRA(rank=4)))
    assert adapters.whole == 2 * 4 * 4 * 64  # more of them are 64 wide than 96


def test_muons_step_takes_a_large_matrix_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "STACKED_ELEMENTS", 64 * 96 + 1)
    size, square = 64 * 96, 64 * 64
    assert muon_step_peak(plan_input()).temporary == pytest.approx(
        3 * 2 * size + 2 * 2 * square, rel=0.001
    )
