"""What passes need is counted: closed forms where there are some, and full depth as the truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ragen_pl.cli.plan import passes
from ragen_pl.cli.plan.live_bytes import LiveBytes
from ragen_pl.cli.plan.passes import annotate_peak, cache_bytes, collect_peak, update_peak
from ragen_pl.cli.plan.setting import PlanInput
from ragen_pl.models.lora import LoRA
from tests.cli.plan.settings import SHAPE, setting


def test_bytes_are_counted_while_they_live() -> None:
    with FakeTensorMode(), LiveBytes() as counter:
        first = torch.zeros(1000)
        second = first.view(10, 100) + 1
        del first
        assert counter.live == 4000
        counter.next_stage()
        third = second @ torch.zeros(100, 5)
        assert third.shape == (10, 5)
        assert counter.live == 4200  # what the product read is gone
    assert counter.peaks == [8000, 6200]


def test_what_was_there_before_is_not_counted() -> None:
    with FakeTensorMode():
        before = torch.zeros(1000)
        with LiveBytes() as counter:
            before.mul_(2)
            del before
    assert (counter.live, counter.peaks) == (0, [0])


@pytest.mark.parametrize(
    "given",
    [
        setting(attention="grouped_matmul", checkpointing=True),
        setting(bf16=False),
        setting(lora=LoRA(rank=4)),
    ],
    ids=["bf16", "fp32", "lora"],
)
def test_depth_is_extrapolated_exactly(monkeypatch: pytest.MonkeyPatch, given: PlanInput) -> None:
    assert SHAPE.layers == 5

    def peaks() -> list[passes.Peak]:
        return [
            update_peak(given),
            annotate_peak(given),
            collect_peak(given, 12, cache_bytes(given, 12)),
        ]

    extrapolated = peaks()
    monkeypatch.setattr(passes, "_SHALLOW", (5, 6))  # traced at the very depth
    assert extrapolated == peaks()


@pytest.mark.parametrize(("bf16", "size"), [(False, 4 + 4), (True, 2 + 2)])
def test_a_cache_holds_keys_and_values_of_every_slot(bf16: bool, size: int) -> None:
    # Two heads of width 16; a slot is spare.
    assert cache_bytes(setting(bf16=bf16), 12) == 12 * 65 * 2 * 16 * 5 * size


def test_copies_are_of_what_is_multiplied_with() -> None:
    layer = 2 * 64 * (64 + 32) + 3 * 64 * 96
    given = setting(critic=True)
    assert update_peak(given).copies == 2 * 5 * layer  # of one network at a time
    assert update_peak(setting(bf16=False)).copies == 0
    # Layers that are computed again, or need no gradient, give theirs back when they are done.
    assert update_peak(setting(critic=True, checkpointing=True)).copies <= 2 * 2 * layer
    assert annotate_peak(given).copies <= 2 * layer
    sampling = collect_peak(given, 12, cache_bytes(given, 12))
    assert sampling.copies == 2 * (5 * layer + 300 * 64)  # samples go through the head


def test_what_ought_to_save_memory_does() -> None:
    plain = update_peak(setting()).passing
    assert update_peak(setting(checkpointing=True)).passing < plain
    assert annotate_peak(setting()).passing < plain
    budget = replace(setting().optimization, tokens_per_micro_batch=256)
    longer = replace(setting(), optimization=budget)
    assert longer.micro_batch_rows == 2 * setting().micro_batch_rows
    assert 1.5 * plain < update_peak(longer).passing < 2 * plain
